"""AWS's event stream from bytes that another may have written: messages, or one sentence."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.load.aws_event_stream import Malformed, parse_messages, read_messages


def message(headers: bytes = b"", payload: bytes = b"", *, total: int | None = None) -> bytes:
    """A message with right checksums; `total` is the length that it states."""
    lengths = struct.pack(">II", 16 + len(headers) + len(payload) if total is None else total, len(headers))
    whole = lengths + struct.pack(">I", zlib.crc32(lengths)) + headers + payload
    return whole + struct.pack(">I", zlib.crc32(whole))


EVENT = b"\x0d:message-type\x07\x00\x05event"
NUMBER = b"\x01n\x04\x00\x00\x00\x07"


def test_messages_with_their_ends_and_the_headers_that_are_text() -> None:
    one, two = message(EVENT + NUMBER, b"first"), message(b"", b"")
    rows = list(parse_messages(one + two + one[:-1]))
    assert [(row.headers, row.payload, row.end) for row in rows] == [
        ({":message-type": "event"}, b"first", len(one)),
        ({}, b"", len(one + two)),
    ]
    with pytest.raises(Malformed, match="cut off in a message"):
        list(read_messages(io.BytesIO(one + two[:-1]).read))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"HTTP/1.1 500 ", "begins wrongly"),
        (message(total=0), "begins wrongly"),
        (message(total=12), "begins wrongly"),
        (message(total=1 << 30), "begins wrongly"),
        (message(EVENT)[:-1] + b"\x00", "wrong checksum"),
        (message(EVENT + EVENT), "headers that cannot be read"),
        (message(b"\x01x\x0a"), "headers that cannot be read"),
        (message(b"\x01x\x07\x00\x02\xff\xfe"), "headers that cannot be read"),
        (message(b"\x01x\x04\x00"), "headers that cannot be read"),
    ],
)
def test_what_is_no_event_stream_is_said_in_one_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(Malformed, match=sentence):
        list(parse_messages(body))


@given(st.lists(st.one_of(st.just(message(EVENT, b"text")), st.binary(max_size=40)), max_size=6).map(b"".join))
def test_any_bytes_are_messages_or_malformed(body: bytes) -> None:
    try:
        ends = [row.end for row in parse_messages(body)]
    except Malformed:
        return
    assert ends == sorted(ends) and all(end <= len(body) for end in ends)
