"""An estimate, a choice of instances and the plan of a compilation as text: quantities with units, unknown where
unknown."""

from __future__ import annotations

from collections.abc import Sequence

from backend.cli.output import table
from backend.domain.figures import figure, streams
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.estimate_correction import Calibration
from backend.domain.planner.target_choice import Deployment, RejectedTarget, TargetChoice
from backend.service.plans.neuron_compilation import CompilationPreview
from backend.service.plans.optimize import OptimizePreview

LOSERS_SHOWN = 12


def estimate_text(found: Estimate) -> str:
    """One line a quantity, then what is unknown, then the formulas."""
    gb = 1e9
    load = f"{found.load.input_tokens} tokens in, {found.load.output_tokens} out, {found.load.concurrency} at once"
    rows = [
        ("target", found.target),
        ("load", load),
        ("weights", f"{found.weights_bytes / gb:,.3g} GB (the original's {found.weights_bytes_original / gb:,.3g} GB)"),
        ("cache a token", f"{found.kv_bytes_per_token / 1024:,.5g} KiB"),
        ("tensor parallel", f"{found.tensor_parallel} (at least {found.min_tensor_parallel or 'unknown'})"),
        ("replicas", f"{found.replicas}{f', {found.idle} of {found.devices} accelerators idle' if found.idle else ''}"),
        ("left for the cache", _range_text(found.cache_bytes, 1 / gb, "GB a device")),
        ("tokens in the cache", _range_text(found.tokens_in_cache, 1, "tokens")),
        ("longest context", _value_text(found.max_context, "tokens")),
        ("largest batch", _value_text(found.max_batch, "requests of this load")),
        ("time to first token", _range_text(found.ttft_ms, 1, "ms")),
        ("time per output token", _range_text(found.tpot_ms, 1, "ms")),
        ("output", _range_text(found.output_tokens_per_s, 1, "tokens/s")),
        (
            "price per hour",
            f"{found.price_per_hour:,.4g} USD, {found.price_note}" if found.price_per_hour is not None else "unknown",
        ),
        ("price per M output", _range_text(found.price_per_million_output, 1, "USD")),
        ("optimize job", _range_text(found.job_seconds, 1, "s")),
        ("cost of the job", _range_text(found.job_cost, 1, "USD")),
        ("disk for the job", f"{found.disk_bytes / gb:,.3g} GB"),
        ("memory for the job", f"{found.memory_bytes / gb:,.3g} GB"),
    ]
    lines = [f"{name:22} {value}" for name, value in rows]
    lines += [f"unknown: {reason}" for reason in found.unknown]
    lines += _calibration_lines(found.calibration) if found.calibration else []
    return "\n".join(
        [*lines, "", "All of this is estimated:", *(f"  {name}: {formula}" for name, formula in found.formulas.items())]
    )


def choice_text(choice: TargetChoice) -> str:
    """The winner's estimate, and the first of the others with why they lost."""
    head = f"{choice.winner.target}. {choice.why}\n\n{estimate_text(choice.winner)}" if choice.winner else choice.why
    more = len(choice.losers) - LOSERS_SHOWN
    rest = f"\nand {more} more, with --json." if more > 0 else ""
    return f"{head}\n\nThe others:\n{_loser_lines(choice.losers)}{rest}"


def _loser_lines(losers: Sequence[RejectedTarget]) -> str:
    shown = [(loser.target, loser.price_per_hour, loser.why) for loser in losers[:LOSERS_SHOWN]]
    return table(("target", "USD an hour", "why it lost"), shown)


def preview_text(title: str, preview: OptimizePreview) -> str:
    """The steps, what the job needs, where it runs, and where the result is meant to be served."""
    steps = [f"  {number}. {step.title}" for number, step in enumerate(preview.plan.steps, 1)] or [
        "  nothing: the original"
    ]
    need = preview.need
    needs = f"  needs {need.disk_bytes / 1e6:.0f} MB of disk and about {need.memory_bytes / 1e6:.0f} MB of memory"
    notes = [f"  {note}" for note in preview.plan.notes]
    return "\n".join([f"{title}:", *steps, needs, *notes, preview.where, *_deployment_lines(preview.deployment)])


def _deployment_lines(found: Deployment | None) -> list[str]:
    if found is None:
        return []
    price = f", {found.price_per_hour:,.4g} USD an hour" if found.price_per_hour is not None else ""
    replicas = f", {found.replicas} replicas" if found.replicas > 1 else ""
    lines = [f"\nTo be served on {found.target}{price}, tensor parallel {found.tensor_parallel}{replicas}. {found.why}"]
    if found.job:
        took = f"{_range_text(found.job.seconds, 1, 's')}, {_range_text(found.job.cost, 1, 'USD')}"
        lines.append(f"The job itself would cost least on {found.job.target}: {took} (estimated).")
    return [*lines, "", "The others:", _loser_lines(found.losers)] if found.losers else lines


def _calibration_lines(found: Calibration) -> list[str]:
    """What it was corrected by, and how far the prediction lay from each measured level before and after."""
    head = f"calibrated by evaluation {found.evaluation} on {found.measured_at}, at {streams(found.concurrency)}:"
    rows = [
        (point.concurrency, point.metric, figure(point.measured), _percent(point.error), _percent(after.error))
        for point, after in zip(found.points, found.after, strict=True)
    ]
    return ["", head, table(("streams", "metric", "measured", "error before", "error after"), rows)]


def _range_text(ends: tuple[float, float] | None, factor: float, unit: str) -> str:
    if ends is None:
        return "unknown"
    least, most = (f"{end * factor:,.4g}" if abs(end * factor) < 10000 else f"{end * factor:,.0f}" for end in ends)
    return f"{least} {unit}" if least == most else f"{least} to {most} {unit}"


def _value_text(value: int | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:,} {unit}"


def _percent(error: float) -> str:
    whole = round(error * 100)
    return f"{whole:+d}%" if whole else "0%"


def compilation_text(found: CompilationPreview) -> str:
    """The key first, since it is what finds the result again; last whether the cache has it."""
    head = f"{found.plan.model} for {found.target}: what would be compiled."
    return "\n".join([head, *(f"{name:18} {value}" for name, value in found.rows), *found.notes, found.lookup.sentence])
