"""The load generator at its limits, against a server whose true send times are known: rate, connections, shape and
length.

Four questions: does one process take in all that 256 streams of 49k tokens/s send, and at what share of a core; do
2,000 connections work, in how much memory; does an early empty chunk, or four tokens a chunk, move any metric away from
the truth; do prompts of 50k tokens, answers of 16,000, or sessions of long turns slow it down?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from backend.domain.evaluation.document import LATENCY_METRICS, Level
from backend.domain.evaluation.metrics import summarise_level
from backend.domain.load.load import Load
from backend.domain.load.records import Audit, LoadPlan, RequestRecord
from backend.domain.maths.intervals import percentile
from backend.evaluate.load import run_level
from tests.fakes.running import ask, running, write_prompts

Truth = dict[int, dict[str, Any]]
RATES = (
    "input_tokens_per_s",
    "output_tokens_per_s",
    "steady_output_tokens_per_s",
    "input_tokens_per_s_per_request",
    "output_tokens_per_s_per_request",
    "requests_per_s",
    "input_tokens",
    "output_tokens",
    "tokens_per_chunk",
)
SHAPES: dict[str, tuple[int, list[object]]] = {
    "plain": (1, []),
    "role_chunk_and_4_tokens": (4, ["--role-chunk", "--tokens-per-chunk", 4]),
}
"""Name -> tokens a chunk, and the server's options for it."""
LONG_PROMPT = "word " * 50_000
"""About 50k tokens, 250 kB."""


@contextmanager
def measured(folder: Path, server: list[object], **plan: Any) -> Iterator[tuple[list[RequestRecord], Audit, Truth]]:
    """One level against an exact server with those options: records, audit, and what it really sent, by number.

    `tokens` an answer in the mean, of 32 lengths; before each prompt come the words `before`; with `turns` above one,
    each prompt is a session of so many turns, each answered at that length.
    """
    lengths, before, turns = _lengths(plan.pop("tokens")), plan.pop("before", ""), plan.pop("turns", 1)
    folder.mkdir(parents=True, exist_ok=True)
    words = (f"{before}{n} tokens" for n in lengths)
    requests = ({"prompt": word} if turns == 1 else {"turns": [word, *["and then"] * (turns - 1)]} for word in words)
    prompts = write_prompts(folder, *({**row, "max_tokens": n} for row, n in zip(requests, lengths, strict=True)))
    with running("exact_server.py", "--realtime", *server) as url:
        records, audit = run_level(
            LoadPlan(url=url, model="exact", endpoint="chat", prompts=prompts, **plan), folder / "level"
        )
        yield records, audit, {row["number"]: row for row in ask(f"{url}/sent")}


def _lengths(mean: int) -> list[int]:
    return [mean * (n + 17) // 32 for n in range(32)]


def sent_by_server(record: RequestRecord, truth: Truth) -> dict[str, Any]:
    return truth[int(record.text.split(" ", 1)[0][1:])]


def offered(folder: Path, streams: int, tokens_per_s: float, seconds: float) -> dict[str, float]:
    """All that was sent, was it seen; the share of a core; the rate the server itself came to."""
    server = ["--rate", tokens_per_s / streams, "--ttft-ms", 5]
    with measured(folder, server, tokens=256, load=Load("closed", streams), seconds=seconds, warmup_requests=0) as (
        records,
        audit,
        truth,
    ):
        sends = [time for row in truth.values() for time in row["sends"]]
        total = sum(len(record.chunk_times) for record in records)
        return {
            "tokens_per_s_asked": tokens_per_s,
            "tokens_per_s_sent_by_server": _in_the_middle(sends),
            "share_of_chunks_seen": total / len(sends),
            "core_share": audit.cpu_s / audit.wall_s,
            "cpu_s_per_1k_tokens": audit.cpu_s / total * 1000,
            "failed": float(sum(not record.ok for record in records)),
        }


def _in_the_middle(sends: list[float]) -> float:
    """Sends a second between one fifth and four fifths of the time: without the beginning and the end."""
    start, length = min(sends), max(sends) - min(sends)
    return sum(0.2 * length < time - start <= 0.8 * length for time in sends) / (0.6 * length)


def connections(folder: Path, streams: int, seconds: float) -> dict[str, float]:
    """Thousands of connections at once: failures, and the generator's peak memory with all answers kept."""
    server = ["--rate", 5, "--ttft-ms", 200]
    with measured(folder, server, tokens=32, load=Load("closed", streams), seconds=seconds, warmup_requests=0) as (
        records,
        audit,
        _,
    ):
        return {
            "connections": float(streams),
            "requests": float(len(records)),
            "failed": float(sum(not record.ok for record in records)),
            "achieved_concurrency": audit.achieved_concurrency or 0.0,
            "peak_rss_mb": (audit.peak_rss_bytes or 0) / 1e6,
        }


def shapes(folder: Path, streams: int, seconds: float) -> dict[str, float]:
    """How far each metric of `Level` is from the truth, in percent of it: plain, and in the awkward shape.

    Of a latency the worst of mean, p50, p90, p95 and p99. The truth is the same level made of the server's own stamps;
    each shape has its own, since with four tokens a chunk the gaps between chunks are four times as long, as they
    should be.
    """
    result, load = {}, Load("closed", streams)
    for name, (tokens, options) in SHAPES.items():
        server: list[object] = ["--rate", 47, "--ttft-ms", 100, *options]
        with measured(folder / name, server, tokens=128, load=load, seconds=seconds, warmup_requests=1) as level:
            for metric, percent in differences(
                load, *level, tokens_a_chunk=tokens, requested_tokens=_lengths(128)
            ).items():
                result[f"{name}_{metric}_percent"] = percent
    return result


def differences(
    load: Load,
    records: list[RequestRecord],
    audit: Audit,
    truth: Truth,
    *,
    tokens_a_chunk: int,
    requested_tokens: Sequence[int],
) -> dict[str, float]:
    """Compare every figure of the level with the same made of `truth`, in percent.

    `requested_tokens` are the tokens that each prompt asks for.
    """
    true = [
        _true(record, sent_by_server(record, truth), tokens_a_chunk, requested_tokens[record.prompt])
        for record in records
    ]
    observed, real = (summarise_level(load, [rows], [audit], pricing=None, acceptance=None) for rows in (records, true))
    latencies = {
        name: _worst(getattr(observed, name).model_dump(), getattr(real, name).model_dump()) for name in LATENCY_METRICS
    }
    return latencies | {name: _worst(_only(observed, name), _only(real, name)) for name in RATES}


def _only(level: Level, name: str) -> dict[str, float]:
    return {name: getattr(level, name)}


def _worst(values: dict[str, Any], real: dict[str, Any]) -> float:
    return max(abs(values[name] / value - 1) * 100 for name, value in real.items() if isinstance(value, int | float))


def _true(record: RequestRecord, row: dict[str, Any], tokens_a_chunk: int, number: int) -> RequestRecord:
    """The record as the server would write it. Its answer ends with the last content: what follows leaves at that
    moment."""
    sends = row["sends"]
    last = {"first_content": sends[0], "last_content": sends[-1], "end": sends[-1], "output_tokens": number}
    tokens = tuple(float(min(number, n * tokens_a_chunk)) for n in range(1, len(sends) + 1))
    return record.model_copy(
        update={"sent": row["received"], "chunk_times": tuple(sends), "chunk_tokens": tokens, **last}
    )


def short(folder: Path) -> dict[str, float]:
    """What the long ones are held against: the same streams and the same rate, 128 tokens an answer, a few words a
    prompt."""
    return _of_length(folder, tokens=128, requests=640)


def long_prompts(folder: Path) -> dict[str, float]:
    """Prompts of 50k tokens, answers as short."""
    return _of_length(folder, tokens=128, requests=640, before=LONG_PROMPT)


def long_answers(folder: Path) -> dict[str, float]:
    """16,000 tokens an answer in the mean."""
    return _of_length(folder, tokens=16_000, requests=32)


def long_sessions(folder: Path) -> dict[str, float]:
    """Sessions of three turns of 4,000 tokens an answer, after 50k tokens of prompt: each answer is part of the
    next."""
    return _of_length(folder, tokens=4_000, requests=96, before=LONG_PROMPT, turns=3)


def _of_length(folder: Path, **plan: Any) -> dict[str, float]:
    """16 streams of 750 tokens/s each: what the clients' clock was late by, and the errors of its stamps."""
    server: list[object] = ["--rate", 750, "--ttft-ms", 100]
    with measured(folder, server, load=Load("closed", 16), warmup_requests=0, **plan) as (records, audit, truth):
        result = errors(records, truth)
        return {
            "requests": float(len(records)),
            "tokens_an_answer": sum(len(record.chunk_times) for record in records) / len(records),
            "loop_lag_ms_p99": audit.loop_lag_ms_p99,
            "loop_lag_ms_max": audit.loop_lag_ms_max,
            **result,
            "cpu_s_per_1k_tokens": audit.cpu_s / sum(record.output_tokens or 0 for record in records) * 1000,
            "client_limited": float(audit.client_limited),
        }


def errors(records: list[RequestRecord], truth: Truth) -> dict[str, float]:
    """Percentiles of the absolute errors in ms over all measured answers, by the server's own stamps: of TTFT and of
    the gaps between chunks; and `arrival`, the way of a chunk from the one to the other. Raises where an answer is
    missing."""
    bad = [record.status for record in records if not record.ok]
    if bad:
        raise SystemExit(f"{len(bad)} requests failed: {sorted(set(bad))}")
    first, gaps, arrival = [], [], []
    for record in (record for record in records if not record.warm):
        sent = sent_by_server(record, truth)
        assert (
            record.sent is not None
            and record.first_content is not None
            and len(sent["sends"]) == len(record.chunk_times)
        )
        first.append(abs(record.first_content - record.sent - (sent["sends"][0] - sent["received"])) * 1000)
        arrival += [(observed - left) * 1000 for observed, left in zip(record.chunk_times, sent["sends"], strict=True)]
        true_gaps = (b - a for a, b in pairwise(sent["sends"]))
        gaps += [abs(b - a - true) * 1000 for (a, b), true in zip(pairwise(record.chunk_times), true_gaps, strict=True)]
    first, gaps, arrival = sorted(first), sorted(gaps), sorted(arrival)
    return {
        "ttft_error_ms_p50": percentile(first, 50),
        "ttft_error_ms_p99": percentile(first, 99),
        "gap_error_ms_p99": percentile(gaps, 99),
        "gap_error_ms_max": gaps[-1],
        "arrival_ms_p50": percentile(arrival, 50),
        "arrival_ms_p99": percentile(arrival, 99),
        "arrival_ms_max": arrival[-1],
    }
