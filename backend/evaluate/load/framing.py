"""HTTP/1.1 framing (RFC 9112): when a response ends, and what its body is.

`Framing` runs inside the measurement, so it only counts bytes; `body_segments` reads the kept bytes afterwards. Knows
nothing of sockets, and of the body only the end mark of an OpenAI-compatible stream.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

HEAD_LIMIT = 65536
END_MARK_WITHIN = 64
"""Bytes at the end of a read in which the end mark is looked for: it is the last that a server sends of a stream."""
_END_MARK = re.compile(rb"[\r\n]data: ?\[DONE\]")
"""The mark at the beginning of a line, where text inside JSON never is."""
_END_MARK_OF_READ = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")
"""The same if it is not known how the read before it ended."""


class Malformed(ValueError):
    """The bytes are not an HTTP/1.1 response."""


class Head(NamedTuple):
    """Status line and header fields, names in lower case; `size` is the head's length in bytes."""

    status: int
    fields: dict[str, str]
    size: int

    @property
    def chunked(self) -> bool:
        return "chunked" in self.fields.get("transfer-encoding", "").lower()

    @property
    def length(self) -> int | None:
        """Content-Length; 0 for the answers that never have a body. Raises Malformed where it is no number."""
        if self.status in {204, 304}:
            return 0
        text = self.fields.get("content-length")
        if text is None or self.chunked:
            return None
        if not text.isdecimal() or len(text) > 18:
            raise Malformed(f"Content-Length is {text[:40]!r}")
        return int(text)


def read_head(raw: bytes, start: int = 0) -> Head | None:
    """The final response's head (1xx ones skipped) from `start`; None where it is incomplete.

    `size` counts from the beginning of `raw`. Raises Malformed.
    """
    # Skip interim responses until the head of the final one is complete.
    status = 100
    while 100 <= status < 200:
        if start > HEAD_LIMIT:
            raise Malformed("interim responses never end")
        end = raw.find(b"\r\n\r\n", start)
        if end < 0:
            if len(raw) - start > HEAD_LIMIT or not raw.startswith(b"HTTP/"[: len(raw) - start], start):
                raise Malformed(f"the answer begins with {raw[start : start + 40]!r}")
            return None
        first, *lines = raw[start:end].decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise Malformed(f"the status line is {first[:40]!r}")
        status = int(rest[:3])
        start = end + 4
    # Read the header fields of the final head.
    pairs = (line.partition(":") for line in lines)
    fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if version == "HTTP/1.0":
        fields.setdefault("connection", "close")
    return Head(status, fields, end + 4)


class Framing:
    """Fed every read of one response; `feed` answers True once the response is complete, and raises Malformed.

    `marked`: the end mark of a stream came in the last read, although the response is not complete.
    """

    __slots__ = ("_left", "_pending", "feed", "head", "keep_alive", "marked", "until_close")

    def __init__(self) -> None:
        self.feed: Callable[[bytes], bool] = self._head
        self.head: Head | None = None
        self.keep_alive = True
        self.until_close = False
        self.marked = False
        self._pending = b""
        self._left = 0

    def _head(self, data: bytes) -> bool:
        # Wait until the head is complete.
        data = self._pending + data
        self.head = head = read_head(data)
        if head is None:
            self._pending = data
            return False
        self._pending = b""
        # Choose by its fields what tells the end of the body.
        self.keep_alive = "close" not in head.fields.get("connection", "").lower()
        length = head.length
        if head.chunked:
            self.feed = self._chunked
        elif length is not None:
            self._left = length
            self.feed = self._counted
        else:
            self.keep_alive, self.until_close = False, True
            self.feed, self._pending = self._unbounded, b"\n"
        return self.feed(data[head.size :])

    def _counted(self, data: bytes) -> bool:
        self._left -= len(data)
        self.keep_alive = self.keep_alive and self._left >= 0
        return self._left <= 0

    def _unbounded(self, data: bytes) -> bool:
        """Ends with the connection; but some servers leave it open after the end mark."""
        recent = self._pending + data
        self._pending = recent[-END_MARK_WITHIN:]
        return _END_MARK.search(recent) is not None

    def _chunked(self, data: bytes) -> bool:
        """`_left` is how many bytes from here the next chunk-size line is away."""
        # Begin with the part of a size line that came last time.
        if self._pending:
            data, self._pending = self._pending + data, b""
        position, size = self._left, len(data)
        # Jump from one size line to the next; the rest of an unfinished one waits for more data.
        while position < size:
            line = data.find(b"\r\n", position)
            if line < 0:
                self._pending, self._left = _short(data[position:]), 0
                return False
            length = chunk_size(data[position:line])
            if length == 0:
                self.feed = self._trailer
                return self._trailer(data[line:])
            position = line + length + 4
        # Look for the end mark, since a server may go on after it.
        self._left = position - size
        if data.find(b"[DONE]", -END_MARK_WITHIN) >= 0:
            self.marked = _END_MARK_OF_READ.search(data, max(0, size - END_MARK_WITHIN)) is not None
        return False

    def _trailer(self, data: bytes) -> bool:
        """From the CRLF of the last-chunk line on, so that an empty trailer section also ends with CRLF CRLF."""
        pending = self._pending + data
        end = pending.find(b"\r\n\r\n")
        if end < 0:
            self._pending = _short(pending)
            return False
        self.keep_alive = self.keep_alive and end + 4 == len(pending)
        return True


def chunk_size(line: bytes) -> int:
    """The number in a chunk-size line, extensions ignored. Raises Malformed."""
    digits = line.partition(b";")[0].strip()
    try:
        size = int(digits, 16)
    except ValueError:
        size = -1
    if size < 0:
        raise Malformed(f"a chunk's size is {bytes(line[:40])!r}")
    return size


def body_segments(raw: bytes, head: Head) -> list[tuple[int, int]]:
    """(start, end) in `raw` of each piece of the body: one a chunk, or one in all. Stops where the answer was cut
    off."""
    if not head.chunked:
        end = len(raw) if head.length is None else min(len(raw), head.size + head.length)
        return [(head.size, end)] if end > head.size else []
    segments: list[tuple[int, int]] = []
    position = head.size
    while (line := raw.find(b"\r\n", position)) >= 0:
        length = chunk_size(raw[position:line])
        if length == 0:
            break
        segments.append((line + 2, min(line + 2 + length, len(raw))))
        position = line + length + 4
    return segments


def _short(pending: bytes) -> bytes:
    if len(pending) > HEAD_LIMIT:
        raise Malformed("a chunk-size line or trailer never ends")
    return pending
