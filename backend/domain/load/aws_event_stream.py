"""Parses AWS's event stream (`application/vnd.amazon.eventstream`): messages of headers and a payload.

As Smithy specifies it, a message is: total length and length of the headers (4 bytes each, big-endian), CRC-32 of these
8 bytes, headers, payload, CRC-32 of all before it. Reads a whole body as well as one that is still arriving. Pure, and
written by hand because the load generator, which reads its recorded streams, runs without botocore: only with uvloop
and pydantic.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from backend.domain.load import sagemaker_errors

CONTENT_TYPE = "application/vnd.amazon.eventstream"
PRELUDE, CRC = 12, 4
LONGEST = 24 << 20
"""Most bytes of a message: the specification allows 16 MiB of payload and 128 KiB of headers."""
SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header's value by its type: true, false, byte, short, integer, long, time, UUID."""
BYTES, STRING = 6, 7


class Malformed(ValueError):
    """The bytes are not an event stream; the message says where."""


class Message(NamedTuple):
    """`headers` are those with text; `end` is the offset after the message."""

    headers: dict[str, str]
    payload: bytes
    end: int

    @property
    def failure(self) -> tuple[str, str] | None:
        """The kind and the words of the failure that it reports; None for an event."""
        kind = self.headers.get(":message-type", "event")
        if kind == "event":
            return None
        if kind == "error":
            return self.headers.get(":error-code", "error"), self.headers.get(":error-message", "")
        document = sagemaker_errors.json_document(self.payload)
        words = str(document.get("Message") or document.get("message") or "")
        return str(document.get("ErrorCode") or self.headers.get(":exception-type", "exception")), words


def parse_messages(body: bytes) -> Iterator[Message]:
    """Yield every complete message of the body; one that is cut off at its end is left out. Raises Malformed."""
    position = 0
    while len(body) - position >= PRELUDE:
        total = _total(body[position : position + PRELUDE])
        if len(body) - position < total:
            return
        yield _message(body[position : position + total], position + total)
        position += total


def read_messages(take: Callable[[int], bytes]) -> Iterator[Message]:
    """Yield messages as they arrive; `take(n)` returns n bytes, fewer at the end.

    Raises Malformed, also where the last message is cut off.
    """
    position = 0
    while prelude := take(PRELUDE):
        total = _total(prelude) if len(prelude) == PRELUDE else PRELUDE
        whole = prelude + take(total - len(prelude))
        if len(whole) < total or len(prelude) < PRELUDE:
            raise Malformed("the event stream was cut off in a message")
        position += total
        yield _message(whole, position)


def _total(prelude: bytes) -> int:
    total, headers, checksum = struct.unpack(">III", prelude)
    if zlib.crc32(prelude[:8]) != checksum or not PRELUDE + headers + CRC <= total <= LONGEST:
        raise Malformed("a message of the event stream begins wrongly")
    return int(total)


def _message(whole: bytes, end: int) -> Message:
    if zlib.crc32(whole[:-CRC]) != int.from_bytes(whole[-CRC:]):
        raise Malformed("a message of the event stream has a wrong checksum")
    first = PRELUDE + int.from_bytes(whole[4:8])
    try:
        headers = dict(_headers(whole[PRELUDE:first]))
    except (IndexError, KeyError, UnicodeDecodeError):
        raise Malformed("a message of the event stream has headers that cannot be read") from None
    return Message(headers, whole[first:-CRC], end)


def _headers(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each header with text. Raises IndexError, KeyError or UnicodeDecodeError for other
    bytes."""
    position = 0
    while position < len(data):
        # 1. One byte with the length of the name, the name, one byte with the type of the value.
        name_start = position + 1
        name_end = name_start + data[position]
        name, kind = data[name_start:name_end], data[name_end]
        # 2. The value, with two bytes of length before it where the type has none of its own.
        position = name_end + 1
        if kind in {BYTES, STRING}:
            size = int.from_bytes(data[position : position + 2])
            position += 2
        else:
            size = SIZES[kind]
        if kind == STRING:
            yield name.decode(), data[position : position + size].decode()
        position += size
