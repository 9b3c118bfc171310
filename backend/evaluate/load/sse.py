"""Server-sent events in a body (WHATWG HTML, section 9.2.6): data of each event and where it ends. Bytes in, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE = re.compile(rb"\r\n|\n|\r")


def events(body: bytes) -> Iterator[tuple[bytes, int]]:
    """(data, end) of each complete event that has data; `end` is the offset in `body` after its closing blank line.

    Comments and other fields are passed over. An event that the body ends in the middle of is not given, as the standard
    says, but for a final `data:` line that lacks only its blank line.
    """
    data: list[bytes] = []
    start = 0
    for line_end in _LINE.finditer(body):
        line = body[start : line_end.start()]
        start = line_end.end()
        if line.startswith(b"data:"):
            data.append(line[6:] if line[5:6] == b" " else line[5:])
        elif not line and data:
            yield b"\n".join(data), start
            data = []
    if data:
        yield b"\n".join(data), len(body)
