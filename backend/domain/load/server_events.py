"""Server-sent events (WHATWG HTML, section 9.2.6) as language-model servers send them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

DONE = b"[DONE]"
"""Data of the event that ends the stream of an OpenAI-compatible server."""
ERROR = "error"
"""Name of an event whose data is the server's own error. llama.cpp writes `error: {...}` instead of `event: error`."""
_LINE = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


def parse_server_events(body: bytes) -> Iterator[tuple[str, bytes, int]]:
    """Yield (name, data, end) of each complete event that has data.

    `name` is "" where the server gave none. `end` is the offset in `body` after the event's closing blank line.
    Comments, also inside data as OpenRouter sends them, and unknown fields are passed over. An event that the body ends
    in the middle of is not given, as the standard says, except where only the last blank line is missing, or the end
    mark lacks its line end.
    """
    # 1. Lines, of which a blank one ends an event.
    data: list[bytes] = []
    name = ""
    start = len(_BOM) if body.startswith(_BOM) else 0
    for line_end in _LINE.finditer(body, start):
        line = body[start : line_end.start()]
        start = line_end.end()
        if line.startswith(b"data:"):
            data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif not line:
            if data:
                joined = b"\n".join(data)
                if joined and not joined.lstrip().startswith(b":"):
                    yield name, joined, start
                data = []
            name = ""
        elif line.startswith(b"event:"):
            name = line[6:].strip().decode("utf-8", "replace")
        elif line.startswith(b"error:"):
            name = ERROR
            data.append(line[6:].strip())
    # 2. The last event, where only its end is missing.
    if body[start:].strip() in {b"data: " + DONE, b"data:" + DONE}:
        data.append(DONE)
    if data:
        yield name, b"\n".join(data), len(body)
