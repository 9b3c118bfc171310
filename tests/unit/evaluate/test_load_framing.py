"""HTTP framing: where a response ends, however the network cuts it up."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.evaluate.load.framing import Framing, Malformed, body_segments, chunk_size, read_head

pieces = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
trailers = st.sampled_from([b"", b"X-Sum: 1\r\n", b"A: 1\r\nB: 2\r\n"])


def chunked(parts: list[bytes], trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"


def counted(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % len(raw) for place in places} - {0}), len(raw)]
    return [raw[a:b] for a, b in pairwise(edges)]


def ends_after(reads: list[bytes]) -> tuple[int, Framing]:
    framing = Framing()
    for number, data in enumerate(reads, 1):
        if framing.feed(data):
            return number, framing
    return 0, framing


def body_of(raw: bytes) -> bytes:
    head = read_head(raw)
    assert head is not None
    return b"".join(raw[a:b] for a, b in body_segments(raw, head))


@given(pieces, trailers, st.lists(st.integers(0, 10_000), max_size=12))
def test_a_chunked_answer_ends_at_its_last_byte_and_keeps_the_connection(parts, trailer, places):
    reads = cut(chunked(parts, trailer), places)
    number, framing = ends_after(reads)
    assert number == len(reads)
    assert framing.keep_alive


@given(pieces, trailers)
def test_one_byte_at_a_time_ends_at_the_last_byte(parts, trailer):
    raw = chunked(parts, trailer)
    assert ends_after([bytes([byte]) for byte in raw])[0] == len(raw)


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=6))
def test_a_counted_answer_ends_with_its_length(body, places):
    reads = cut(counted(body), places)
    assert ends_after(reads)[0] == len(reads)


@given(pieces, trailers)
def test_the_body_is_what_was_sent(parts, trailer):
    assert body_of(chunked(parts, trailer)) == b"".join(parts)
    assert body_of(counted(b"".join(parts))) == b"".join(parts)


@given(pieces, st.integers(0, 1000))
def test_the_body_of_a_cut_answer_is_a_beginning_of_it(parts, size):
    raw = chunked(parts)
    remaining = raw[: max(size % len(raw), raw.index(b"\r\n\r\n") + 4)]
    assert b"".join(parts).startswith(body_of(remaining))


def test_a_chunk_that_looks_like_the_end_is_not_the_end():
    reads = [chunked([b"data: 0\r\n\r\n"])[:-5], b"0\r\n\r\n"]
    assert ends_after(reads)[0] == 2


def test_bytes_beyond_the_end_cost_the_connection():
    assert not ends_after([chunked([b"x"]) + b"HTTP/1.1"])[1].keep_alive
    assert not ends_after([counted(b"x") + b"y"])[1].keep_alive


def test_an_unframed_answer_ends_with_done_or_with_the_connection():
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    assert ends_after([head, b"data: {}\n\ndata: [DO", b"NE]\n\n"])[0] == 3
    number, framing = ends_after([head, b"data: {}\n\n"])
    assert (number, framing.until_close, framing.keep_alive) == (0, True, False)


@pytest.mark.parametrize("version", [b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 200 OK\r\nConnection: close\r\n"])
def test_a_server_that_will_close_is_not_sent_to_again(version: bytes):
    assert not ends_after([version + b"Content-Length: 0\r\n\r\n"])[1].keep_alive


def test_an_interim_response_is_not_the_answer():
    head = read_head(b"HTTP/1.1 100 Continue\r\n\r\n" + counted(b"x"))
    assert head is not None
    assert (head.status, head.length) == (200, 1)


def test_answers_without_a_body_end_with_their_head():
    assert ends_after([b"HTTP/1.1 204 No Content\r\n\r\n"])[0] == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"220 mail ready\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2x0 ?\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n",
        b"HTTP/1.1 20\xb2 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
    ],
)
def test_what_is_not_http_is_told_at_once(raw: bytes):
    with pytest.raises(Malformed):
        Framing().feed(raw)


@pytest.mark.parametrize("line", [b"-5", b"", b"0x"])
def test_an_impossible_chunk_size_is_malformed(line: bytes):
    with pytest.raises(Malformed, match="chunk"):
        chunk_size(line)


MARK = b"data: [DONE]\n\n"


def test_the_end_mark_is_seen_before_the_response_ends():
    framing = Framing()
    assert not framing.feed(chunked([b"data: {}\n\n"])[:-5])
    assert not framing.marked
    assert not framing.feed(b"e\r\n" + MARK + b"\r\n")
    assert framing.marked
    assert framing.feed(b"0\r\n\r\n")


@pytest.mark.parametrize("framed", [True, False])
def test_an_end_mark_inside_text_is_no_end_mark(framed: bool):
    quoted = b'data: {"choices": [{"text": "data: [DONE]"}]}\n\n'
    framing = Framing()
    if framed:
        assert not framing.feed(chunked([quoted])[:-5])
    else:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        assert not any(framing.feed(bytes([byte])) for byte in head + quoted)
        assert framing.feed(b"data:[DONE]\n\n")
    assert not framing.marked


@pytest.mark.parametrize("reads", [1, 1000])
def test_interim_responses_without_end_are_told(reads: int):
    framing = Framing()
    with pytest.raises(Malformed, match="interim responses never end"):
        for _ in range(reads + 1):
            framing.feed(b"HTTP/1.1 100 Continue\r\n\r\n" * (5000 // reads))
