"""The beginning and the end of an answer's bytes: enough to find its token counts without parsing what passes by."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, NamedTuple

KEPT_BYTES = 4096
USAGE = re.compile(rb'(?<!\\)"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
"""A usage object and the objects within it. A quote inside a text has a backslash before it, so no text looks like
one."""
EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class Usage(NamedTuple):
    """Tokens as the server counted them; None where it did not."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class AnswerEnds:
    """The first and the last bytes of an answer. `size` counts all of them."""

    def __init__(self) -> None:
        self._head = self._tail = b""
        self.size = 0

    def add(self, chunk: bytes) -> None:
        if self.size < KEPT_BYTES:
            self._head += chunk[: KEPT_BYTES - self.size]
        self._tail = (self._tail + chunk[-KEPT_BYTES:])[-KEPT_BYTES:]
        self.size += len(chunk)

    @property
    def at_event_end(self) -> bool:
        """Tell whether an event of a stream ends here, so that another may follow."""
        return not self.size or self._tail.endswith(EVENT_ENDS)

    def usage(self) -> Usage:
        """Return the last token counts of the answer."""
        for part in (self._tail, self._head):
            for written in reversed(USAGE.findall(part)):
                with suppress(ValueError):
                    counts = json.loads(written)
                    return Usage(_count(counts, "prompt_tokens"), _count(counts, "completion_tokens"))
        return Usage()


def _count(counts: dict[str, Any], name: str) -> int | None:
    value = counts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
