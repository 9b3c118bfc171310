"""Turn an estimate into table rows and text: each quantity is a range with a unit, or unknown. Pure.

A range is written with a dash, `12–35 ms`; measured figures never are.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.formatting import NOT_ESTIMATED, dashed, duration_range, range_text, size
from backend.domain.figures import figure, streams
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.estimate_correction import RATE, TPOT, TTFT, Calibration, PredictionPoint
from backend.domain.planner.target_choice import RejectedTarget, TargetChoice
from backend.domain.planner.token_work import TokenWork
from backend.domain.recipe.serving_engines import ENGINES
from backend.present.words.headline import Tile

METRICS = {TTFT: ("first token", "ms"), TPOT: ("output token", "ms"), RATE: ("output", "tokens/s")}


Figure = tuple[str, str]
"""Name and value of a quantity."""


def size_range(ends: tuple[float, float] | None) -> str:
    """Return `9.3–10 GB`."""
    if ends is None:
        return NOT_ESTIMATED
    least, most = size(ends[0]), size(ends[1])
    if least == most:
        return least
    same = least.split()[-1] == most.split()[-1]
    return f"{least.split()[0] if same else least}–{most}"


def speed_rows(estimate: Estimate) -> list[Figure]:
    """Return latency, throughput and price of serving."""
    each = " of each instance" if estimate.instances > 1 else ""
    return [
        ("Time to ready", range_text(estimate.ready_seconds, "s")),
        ("Time to first token", range_text(estimate.ttft_ms, "ms")),
        ("Time per output token", range_text(estimate.tpot_ms, "ms")),
        (f"Output tokens/s{each}", range_text(estimate.output_tokens_per_s)),
        (_price_label(estimate), range_text(estimate.price_per_million_output)),
    ]


def tiles(estimate: Estimate) -> list[Tile]:
    """Return the figures that are in view: speed and price where they are known, the weights, and the job."""
    each = " each" if estimate.instances > 1 else ""
    ranges = [
        ("First token (ms)", estimate.ttft_ms),
        ("Per token (ms)", estimate.tpot_ms),
        (f"Tokens/s{each}", estimate.output_tokens_per_s),
        ("USD per million", estimate.price_per_million_output),
    ]
    before, after = estimate.weights_bytes_original, estimate.weights_bytes
    change = f"{after / before - 1:+.0%} from {size(before)}" if before and after != before else "as the original"
    job = dict(job_rows(estimate))
    took, cost = job["Optimize job"], job["Cost of the job"]
    if NOT_ESTIMATED in {took, cost}:
        took, cost = ("–", "not known yet") if took == NOT_ESTIMATED else (took, "no price per hour")
    return [
        *(Tile(label, range_text(ends)) for label, ends in ranges if ends is not None),
        Tile("Weights", size(after), change),
        Tile("Optimize job", dashed(took), cost),
    ]


def _price_label(estimate: Estimate) -> str:
    """Return the label of the price per token: of all that can be served, or of what a rate asks for."""
    rate = estimate.load.rate
    return "USD per million output" if rate is None else f"USD per million output that {estimate.load.demand} ask for"


def memory_rows(estimate: Estimate) -> list[Figure]:
    """Return the memory that serving needs, and how much fits into it."""
    least = str(estimate.min_tensor_parallel) if estimate.min_tensor_parallel else NOT_ESTIMATED
    before = size(estimate.weights_bytes_original)
    changed = f" (original {before})" if estimate.weights_bytes != estimate.weights_bytes_original else ""
    return [
        ("Engine", f"{ENGINES[estimate.engine].title}, weights as {estimate.weight_format}"),
        ("Weights", f"{size(estimate.weights_bytes)}{changed}"),
        *([("Compression ratio", f"{estimate.compression_ratio:.3g}")] if changed else []),
        *([("Work per token", work_text(estimate.token_work))] if estimate.token_work else []),
        ("Memory of its server", size_range(estimate.serving_bytes)),
        ("KV cache per token", f"{estimate.kv_bytes_per_token / 1024:,.4g} KiB"),
        ("Tensor parallel", f"{estimate.tensor_parallel} (at least {least})"),
        *([("Pipeline stages", str(estimate.pipeline_parallel))] if estimate.pipeline_parallel > 1 else []),
        *([("Replicas", str(estimate.replicas))] if estimate.replicas > 1 else []),
        *([("Idle accelerators", f"{estimate.idle} of {estimate.devices}")] if estimate.idle else []),
        ("Free KV cache per device", size_range(estimate.cache_bytes)),
        ("Tokens in the cache", range_text(estimate.tokens_in_cache)),
        ("Longest context", _tokens(estimate.max_context, "tokens")),
        ("Largest batch of this load", _tokens(estimate.max_batch, "requests")),
    ]


def work_text(work: TokenWork) -> str:
    """Return `0.27 GFLOPs, 0.9 FLOPs per byte, bound by memory`."""
    words = f"{figure(work.flops / 1e9)} GFLOPs, {figure(work.intensity)} FLOPs per byte"
    return words if work.bound is None else f"{words}, bound by {work.bound}"


def job_rows(estimate: Estimate) -> list[Figure]:
    """Return what the optimize job takes if it runs on that target."""
    took = duration_range(*estimate.job_seconds) if estimate.job_seconds and estimate.job_seconds[1] else NOT_ESTIMATED
    took = "none" if estimate.job_seconds == (0.0, 0.0) else took
    return [
        ("Optimize job", took),
        ("Cost of the job", "0 USD" if estimate.job_cost == (0.0, 0.0) else range_text(estimate.job_cost, "USD")),
        ("Disk for the job", size(estimate.disk_bytes)),
        ("Memory for the job", size(estimate.memory_bytes)),
    ]


def _tokens(value: int | None, unit: str) -> str:
    return NOT_ESTIMATED if value is None else f"{value:,} {unit}"


def price_text(estimate: Estimate) -> str:
    if estimate.price_per_hour is None:
        return "no price is known"
    one = f"{estimate.price_per_hour:,.4g} USD per hour"
    all_ = f"{estimate.price_of_all_per_hour:,.4g} USD per hour for {estimate.instances:,} instances, {one} each"
    return f"{all_ if estimate.instances > 1 else one}, {estimate.price_note or 'as given'}"


def calibration_lines(calibration: Calibration) -> list[str]:
    """Return a line per measured level: each metric, with the error of the prediction before and after correction."""
    lines: dict[int, list[str]] = {}
    for point, after in zip(calibration.points, calibration.after, strict=True):
        name, unit = METRICS[point.metric]
        parts = f"{name} {figure(point.measured)} {unit} (error {error_percent(point)}, then {error_percent(after)})"
        lines.setdefault(point.concurrency, []).append(parts)
    return [f"{streams(level)}: {', '.join(parts)}." for level, parts in lines.items()]


def error_percent(point: PredictionPoint) -> str:
    whole = round(point.error * 100)
    return f"{whole:+d} %" if whole else "0 %"


def loser_rows(losers: Sequence[RejectedTarget]) -> list[dict[str, object]]:
    """Return the instances that were not chosen, those that fit first."""
    return [
        {"Instance": loser.target, "USD per hour": loser.price_per_hour, "Why it lost": loser.why} for loser in losers
    ]


def choice_sentence(choice: TargetChoice) -> str:
    """Return the choice in one sentence."""
    return f"{choice.winner.target} is chosen. {choice.why}" if choice.winner else choice.why
