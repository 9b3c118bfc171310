"""Parses AWS's event stream (`application/vnd.amazon.eventstream`), messages of headers and a payload, with botocore.

Reads a whole body as well as one that is still arriving. A message is handed to botocore as a whole, since its buffer
copies what is left for each message. botocore's module takes 5 ms to load, and is imported by the first stream.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from backend.domain.load import sagemaker_errors

CONTENT_TYPE = "application/vnd.amazon.eventstream"
PRELUDE, CRC = 12, 4
"""Bytes before the headers: two lengths and their checksum; bytes of the checksum at the end of a message."""


class Malformed(ValueError):
    """The bytes are not an event stream; the message says where."""


class CutOff(Malformed):
    """The bytes end in a message."""


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
    try:
        yield from read_messages(io.BytesIO(body).read)
    except CutOff:
        return


def read_messages(take: Callable[[int], bytes]) -> Iterator[Message]:
    """Yield messages as they arrive; `take(n)` returns n bytes, fewer at the end.

    Raises Malformed, also where the last message is cut off.
    """
    from botocore.eventstream import ChecksumMismatch, EventStreamBuffer, ParserError

    buffer, end = EventStreamBuffer(), 0
    while prelude := take(PRELUDE):
        # 1. The lengths. botocore checks their checksum and size as soon as it has them, but not that they fit.
        if len(prelude) < PRELUDE:
            raise CutOff("the event stream was cut off in a message")
        total, headers = struct.unpack(">II", prelude[:8])
        buffer.add_data(prelude)
        try:
            sound = total >= PRELUDE + headers + CRC and next(buffer, None) is None
        except ParserError:
            sound = False
        if not sound:
            raise Malformed("a message of the event stream begins wrongly")
        # 2. The rest of the message.
        buffer.add_data(take(total - PRELUDE))
        try:
            message = next(buffer, None)
        except ChecksumMismatch:
            raise Malformed("a message of the event stream has a wrong checksum") from None
        except (ParserError, KeyError, UnicodeDecodeError, struct.error):
            raise Malformed("a message of the event stream has headers that cannot be read") from None
        if message is None:
            raise CutOff("the event stream was cut off in a message")
        end += total
        texts = {name: value for name, value in message.headers.items() if isinstance(value, str)}
        yield Message(texts, message.payload, end)
