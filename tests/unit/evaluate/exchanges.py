"""Exchanges with a streaming server, byte by byte."""

from __future__ import annotations

import json
from typing import Any

from backend.evaluate.load.stream import Exchange

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(text: str, tokens: int | None = None, finish: str | None = None, **more: Any) -> bytes:
    usage = {} if tokens is None else {"usage": {"prompt_tokens": 3, "completion_tokens": tokens}}
    return (
        b"data: "
        + json.dumps({"choices": [{"text": text, "finish_reason": finish}], **usage, **more}).encode()
        + b"\n\n"
    )


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def exchange(*reads: bytes, status: str = "done", head: bytes = HEAD) -> Exchange:
    """The head at 1.0 s, then a read each second."""
    created = Exchange(0, 0, 0, 0, False, 0.5, sent=0.6, status=status, end=1.0 + len(reads))
    created.reads = [head, *reads]
    created.times = [1.0 + n for n in range(len(reads) + 1)]
    return created
