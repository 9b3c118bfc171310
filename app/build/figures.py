"""An estimate in rows and words: every quantity a range with its unit, unknown where it is unknown. Pure.

A range is written with a dash, `12–35 ms`; no measured figure of the studio is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from app.words import between, size
from backend.domain.figures import figure, streams
from backend.domain.planner.choose import Choice, Loser
from backend.domain.planner.correction import RATE, TPOT, TTFT, Calibration, Point
from backend.domain.planner.estimate import Estimate

UNKNOWN = "unknown"
METRICS = {TTFT: ("first token", "ms"), TPOT: ("output token", "ms"), RATE: ("output", "tokens/s")}


class Figure(NamedTuple):
    """`formula` is its name in the estimate's formulas."""

    label: str
    value: str
    formula: str


def span(ends: tuple[float, float] | None, unit: str = "", factor: float = 1.0) -> str:
    """`12–35 ms`, to two or three significant digits; one figure where both ends round to it."""
    if ends is None:
        return UNKNOWN
    least, most = (figure(end * factor, 2 if abs(end * factor) < 100 else 3) for end in ends)
    return " ".join(filter(None, (least if least == most else f"{least}–{most}", unit)))


def sizes(ends: tuple[float, float] | None) -> str:
    """`9.3–10 GB`."""
    if ends is None:
        return UNKNOWN
    least, most = size(ends[0]), size(ends[1])
    if least == most:
        return least
    same = least.split()[-1] == most.split()[-1]
    return f"{least.split()[0] if same else least}–{most}"


def speeds(found: Estimate) -> list[Figure]:
    """What serving will give."""
    return [
        Figure("Time to first token", span(found.ttft_ms, "ms"), "ttft"),
        Figure("Time per output token", span(found.tpot_ms, "ms"), "tpot"),
        Figure("Output tokens/s", span(found.output_tokens_per_s), "output_tokens_per_s"),
        Figure("USD per million output", span(found.price_per_million_output), "price"),
    ]


def memory(found: Estimate) -> list[Figure]:
    """What serving will need, and how much it can hold."""
    least = str(found.min_tensor_parallel) if found.min_tensor_parallel else UNKNOWN
    before = size(found.weights_bytes_original)
    changed = f" (original {before})" if found.weights_bytes != found.weights_bytes_original else ""
    return [
        Figure("Weights", f"{size(found.weights_bytes)}{changed}", "weights"),
        Figure("Cache a token", f"{found.kv_bytes_per_token / 1024:,.4g} KiB", "kv_cache"),
        Figure("Tensor parallel", f"{found.tensor_parallel} (at least {least})", "cache"),
        *([Figure("Replicas", str(found.replicas), "output_tokens_per_s")] if found.replicas > 1 else []),
        *([Figure("Idle accelerators", f"{found.idle} of {found.devices}", "price")] if found.idle else []),
        Figure("Left for the cache, a device", sizes(found.cache_bytes), "cache"),
        Figure("Tokens in the cache", span(found.tokens_in_cache), "cache"),
        Figure("Longest context", _tokens(found.max_context, "tokens"), "cache"),
        Figure("Largest batch of this load", _tokens(found.max_batch, "requests"), "cache"),
    ]


def job(found: Estimate) -> list[Figure]:
    """What the optimize job takes if it runs on that target."""
    took = between(*found.job_seconds) if found.job_seconds and found.job_seconds[1] else UNKNOWN
    took = "no job is needed" if found.job_seconds == (0.0, 0.0) else took
    return [
        Figure("Optimize job", took, "job"),
        Figure("Cost of the job", "0 USD" if found.job_cost == (0.0, 0.0) else span(found.job_cost, "USD"), "job"),
        Figure("Disk for the job", size(found.disk_bytes), "disk"),
        Figure("Memory for the job", size(found.memory_bytes), "memory"),
    ]


def _tokens(value: int | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:,} {unit}"


def price(found: Estimate) -> str:
    if found.price_per_hour is None:
        return "no price is known"
    return f"{found.price_per_hour:,.4g} USD an hour, {found.price_note or 'as given'}"


def calibrated(found: Calibration) -> list[str]:
    """One line a measured level: each metric as measured, and how far the prediction lay from it, before and after."""
    lines: dict[int, list[str]] = {}
    for point, after in zip(found.points, found.after, strict=True):
        name, unit = METRICS[point.metric]
        said = f"{name} {figure(point.measured)} {unit} (error {percent(point)}, then {percent(after)})"
        lines.setdefault(point.concurrency, []).append(said)
    return [f"{streams(level)}: {', '.join(said)}." for level, said in lines.items()]


def percent(point: Point) -> str:
    whole = round(point.error * 100)
    return f"{whole:+d} %" if whole else "0 %"


def others(losers: Sequence[Loser]) -> list[dict[str, object]]:
    """The instances that lost, those that could do it first."""
    return [{"Instance": each.target, "USD an hour": each.price_per_hour, "Why it lost": each.why} for each in losers]


def chosen(found: Choice) -> str:
    """The choice in one sentence."""
    return f"{found.winner.target} is chosen. {found.why}" if found.winner else found.why
