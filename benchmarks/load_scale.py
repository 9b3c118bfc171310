"""The load generator at its limits, against a server whose true send times are known: rate, connections, shape of the stream.

Three questions: does one process take in all that 256 streams of 49k tokens/s send, and at what share of a core; do 2,000
connections work, in how much memory; does an early empty chunk, or four tokens a chunk, move any metric away from the truth?
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

from backend.domain.load import Audit, LoadPlan, RequestRecord
from backend.domain.metrics import summarise
from backend.evaluate.load import run_level
from tests.fakes.running import ask, running, write_prompts

Truth = dict[int, dict[str, Any]]


@contextmanager
def measured(folder: Path, server: list[object], **plan: Any) -> Iterator[tuple[list[RequestRecord], Audit, Truth]]:
    """One level against an exact server with those options: records, audit, and what it really sent, by number."""
    mean = plan.pop("tokens")
    lengths = [mean * (n + 17) // 32 for n in range(32)]
    folder.mkdir(parents=True, exist_ok=True)
    prompts = write_prompts(folder, *({"prompt": f"{n} tokens", "max_tokens": n} for n in lengths))
    with running("exact_server.py", "--realtime", *server) as url:
        records, audit = run_level(LoadPlan(url=url, model="exact", endpoint="chat", prompts=prompts, **plan), folder / "level")
        yield records, audit, {row["number"]: row for row in ask(f"{url}/sent")}


def sent_by_server(record: RequestRecord, truth: Truth) -> dict[str, Any]:
    return truth[int(record.text.split(" ", 1)[0][1:])]


def offered(folder: Path, streams: int, tokens_per_s: float, seconds: float) -> dict[str, float]:
    """All that was sent, was it seen; the share of a core; the rate the server itself came to."""
    server = ["--rate", tokens_per_s / streams, "--ttft-ms", 5]
    with measured(folder, server, tokens=256, concurrency=streams, seconds=seconds, warmup_requests=0) as (records, audit, truth):
        sends = [time for row in truth.values() for time in row["sends"]]
        seen = sum(len(record.chunk_times) for record in records)
        return {
            "tokens_per_s_asked": tokens_per_s,
            "tokens_per_s_sent_by_server": _in_the_middle(sends),
            "share_of_chunks_seen": seen / len(sends),
            "core_share": audit.cpu_s / audit.wall_s,
            "cpu_s_per_1k_tokens": audit.cpu_s / seen * 1000,
            "failed": float(sum(not record.ok for record in records)),
        }


def _in_the_middle(sends: list[float]) -> float:
    """Sends a second between one fifth and four fifths of the time: without the beginning and the end."""
    start, length = min(sends), max(sends) - min(sends)
    return sum(0.2 * length < time - start <= 0.8 * length for time in sends) / (0.6 * length)


def connections(folder: Path, streams: int, seconds: float) -> dict[str, float]:
    """Thousands of connections at once: failures, and the generator's peak memory with all answers kept."""
    server = ["--rate", 5, "--ttft-ms", 200]
    with measured(folder, server, tokens=32, concurrency=streams, seconds=seconds, warmup_requests=0) as (records, audit, _):
        return {
            "connections": float(streams),
            "requests": float(len(records)),
            "failed": float(sum(not record.ok for record in records)),
            "achieved_concurrency": audit.achieved_concurrency or 0.0,
            "peak_rss_mb": (audit.peak_rss_bytes or 0) / 1e6,
        }


def shapes(folder: Path, streams: int, seconds: float) -> dict[str, float]:
    """Largest difference from the truth of TTFT, TPOT and content latency, in percent of it: plain, and in the awkward shape."""
    found = {}
    for name, options in (("plain", []), ("role_chunk_and_4_tokens", ["--role-chunk", "--tokens-per-chunk", 4])):
        server: list[object] = ["--rate", 47, "--ttft-ms", 100, *options]
        with measured(folder / name, server, tokens=128, concurrency=streams, seconds=seconds, warmup_requests=1) as level:
            for metric, percent in _differences(*level).items():
                found[f"{name}_{metric}_percent"] = percent
    return found


def _differences(records: list[RequestRecord], audit: Audit, truth: Truth) -> dict[str, float]:
    """Of the means over all measured requests."""
    kept = [record for record in records if not record.warm and record.ok]
    rows = [sent_by_server(record, truth) for record in kept]
    level = summarise(audit.concurrency, [kept], [audit], pricing=None, acceptance=None)
    spans = [row["sends"][-1] - row["sends"][0] for row in rows]
    after_first = [(record.output_tokens or 0) - record.chunk_tokens[0] for record in kept]
    true = {
        "ttft_ms": fmean(row["sends"][0] - row["received"] for row in rows) * 1000,
        "tpot_ms": fmean(span / tokens for span, tokens in zip(spans, after_first, strict=True) if tokens) * 1000,
        "content_latency_ms": fmean(row["sends"][-1] - row["received"] for row in rows) * 1000,
    }
    means = {name: getattr(level, name).mean for name in true}
    return {name: abs(means[name] / value - 1) * 100 for name, value in true.items()}
