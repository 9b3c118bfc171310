"""However the network cuts a stream into reads, the text is the same, and each figure is right or not known."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from backend.domain.evaluation.metrics import FASTEST_TOKEN_S, tpot_s
from backend.domain.load.records import RequestRecord
from backend.evaluate.load.framing import Framing
from backend.evaluate.load.parse import assistant_words, make_record
from backend.evaluate.load.stream import Exchange

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST_S, PACE_S = 2.0, 0.01
"""When the first chunk is sent, and the time from each to the next."""
WORDS = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=12)
ENDS = st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"])
CUTS = st.lists(st.integers(0, 10_000), max_size=30)


def sent(words: list[str], end: str) -> list[tuple[float, bytes]]:
    """(time, bytes) of each send of a server: an HTTP chunk a token, as text that is not escaped, then the usage and
    the end."""
    documents: list[dict[str, Any]] = [{"choices": [{"delta": {"content": word}}]} for word in words]
    usage = {"prompt_tokens": 3, "completion_tokens": len(words)}
    documents.append({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage})
    texts = [f"data: {json.dumps(document, ensure_ascii=False)}{end}" for document in documents] + [
        f"data: [DONE]{end}"
    ]
    bodies = [text.encode("utf-8", "surrogatepass") for text in texts]
    sends = [b"%x\r\n%s\r\n" % (len(body), body) for body in bodies]
    sends[0], sends[-1] = HEAD + sends[0], sends[-1] + b"0\r\n\r\n"
    times = [FIRST_S + PACE_S * number for number in range(len(words))]
    return list(zip([*times, times[-1], times[-1]], sends, strict=True))


def read(sends: list[tuple[float, bytes]], cuts: list[int]) -> Exchange:
    """The stream as a client reads it that is cut there: a read has the time of the last byte in it."""
    raw = b"".join(data for _, data in sends)
    ends = [sum(len(data) for _, data in sends[: number + 1]) for number in range(len(sends))]
    edges = [0, *sorted({cut % len(raw) for cut in cuts} - {0}), len(raw)]
    exchange = Exchange(0, 0, 0, 0, False, 0.5, sent=1.0, end=sends[-1][0], status="done")
    exchange.reads = [raw[start:end] for start, end in pairwise(edges)]
    exchange.times = [
        next(time for (time, _), limit in zip(sends, ends, strict=True) if end <= limit) for end in edges[1:]
    ]
    return exchange


def chunks_up_to(request_record: RequestRecord, time: float) -> int:
    return sum(each <= time for each in request_record.chunk_times)


@given(WORDS, ENDS, CUTS)
@example(["a"] * 8, "\n\n", [])  # a proxy that holds the stream back
@example(["é", "\N{GRINNING FACE}", "data: [DONE]", "\n"], "\r\n\r\n", list(range(10_000)))  # a byte a read
def test_any_cut_gives_the_same_text_and_figures_that_are_right_or_none(words: list[str], end: str, cuts: list[int]):
    exchange = read(sent(words, end), cuts)
    record = make_record(exchange)

    # 1. The text and the counts do not depend on the cuts.
    assert (record.status, record.text, record.output_tokens) == ("ok", "".join(words), len(words))
    assert assistant_words(exchange) == record.text

    # 2. The response is complete at its last read, whether or not the end mark was seen before it.
    framing = Framing()
    assert [framing.feed(data) for data in exchange.reads] == [False] * (len(exchange.reads) - 1) + [True]

    # 3. The first token is stamped by a read that is no earlier than it and no later than the whole.
    assert record.first_content is not None and FIRST_S <= record.first_content <= FIRST_S + PACE_S * (len(words) - 1)

    # 4. The time a token is the server's pace: a read that ends inside a chunk is stamped by it, so that at most the
    # time of one token is missing.
    tpot = tpot_s(record)
    if tpot is not None:
        after_first = len(words) - chunks_up_to(record, record.chunk_times[0])
        assert PACE_S * (after_first - 1) / after_first - 1e-9 <= tpot <= PACE_S + 1e-9
    if len(set(record.chunk_times)) < 2:
        assert tpot is None


@given(WORDS, st.integers(2, 40), st.floats(0, FASTEST_TOKEN_S / 2))
def test_a_burst_of_reads_has_no_time_a_token(words: list[str], pieces: int, between_s: float):
    """A proxy that held the stream back sends it in several reads, one right after the other."""
    raw = b"".join(data for _, data in sent(words, "\n\n"))
    size = -(-len(raw) // pieces)
    exchange = Exchange(0, 0, 0, 0, False, 0.5, sent=1.0, end=9.0, status="done")
    exchange.reads = [raw[start : start + size] for start in range(0, len(raw), size)]
    exchange.times = [5.0 + between_s / len(exchange.reads) * number for number in range(len(exchange.reads))]
    assert tpot_s(make_record(exchange)) is None
