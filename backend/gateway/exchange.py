"""One request to the gateway and its answer: who asked for which model, when what came, and how it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from backend.gateway.answer_ends import Usage

UNKNOWN = "unknown"
NOT_COUNTED = Usage()


@dataclass
class Exchange:
    """The record of one request. Times are seconds from its head's arrival; `status` is None where none was sent."""

    path: str
    began: float = field(default_factory=time.monotonic)
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    key: str = ""
    model: str = UNKNOWN
    job: str = ""
    status: int | None = None
    error: str | None = None
    """The kind of failure; None for an answer that was passed on whole."""
    ttft_s: float | None = None
    """To the first byte of a stream; None for an answer that is no stream."""
    duration_s: float = 0.0
    usage: Usage = NOT_COUNTED
    request_body: bytes = b""
    answer: bytearray = field(default_factory=bytearray)
    """Both are filled only where content is logged."""

    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def line(self, *, with_content: bool) -> dict[str, Any]:
        """Return the line of the request log."""
        line: dict[str, Any] = {
            "time": self.began_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "key": self.key or None,
            "model": self.model,
            "job": self.job or None,
            "path": self.path,
            "status": self.status,
            "error": self.error,
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "ttft_ms": None if self.ttft_s is None else round(self.ttft_s * 1000, 2),
            "duration_ms": round(self.duration_s * 1000, 2),
        }
        if with_content:
            line |= {
                "request": self.request_body.decode("utf-8", "replace"),
                "answer": self.answer.decode("utf-8", "replace"),
            }
        return line
