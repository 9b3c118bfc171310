"""An estimate, a choice of instances and the plan of a compilation as text: quantities with units, unknown where
unknown."""

from __future__ import annotations

from collections.abc import Sequence

from backend.cli.output import table
from backend.domain.figures import figure, streams
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.estimate_correction import Calibration
from backend.domain.planner.target_choice import Deployment, RejectedTarget, TargetChoice
from backend.domain.planner.token_work import TokenWork
from backend.domain.recipe.serving_engines import ENGINES
from backend.present import load_words
from backend.service.plans.neuron_compilation import CompilationPreview
from backend.service.plans.optimize import OptimizePreview

LOSERS_SHOWN = 12


def estimate_text(estimate: Estimate) -> str:
    """Return one line for each quantity, then the unknowns, then the formulas."""
    gb = 1e9
    expected = estimate.load
    load = f"{expected.input_tokens} tokens in, {expected.output_tokens} out, "
    in_flight = f"{expected.concurrency} in flight{' on each instance' if estimate.instances > 1 else ''}"
    load += f"{expected.concurrency} concurrent" if expected.rate is None else f"{expected.demand}, {in_flight}"
    idle = f", {estimate.idle} of {estimate.devices} accelerators idle" if estimate.idle else ""
    rows = [
        ("target", estimate.target),
        ("engine", f"{ENGINES[estimate.engine].title}, weights as {estimate.weight_format}"),
        ("load", load),
        (
            "weights",
            f"{estimate.weights_bytes / gb:,.3g} GB (original: {estimate.weights_bytes_original / gb:,.3g} GB, "
            f"compression ratio {estimate.compression_ratio:.3g})",
        ),
        ("work per token", _work_text(estimate.token_work)),
        ("KV cache per token", f"{estimate.kv_bytes_per_token / 1024:,.5g} KiB"),
        ("tensor parallel", f"{estimate.tensor_parallel} (at least {estimate.min_tensor_parallel or 'unknown'})"),
        *([("pipeline stages", str(estimate.pipeline_parallel))] if estimate.pipeline_parallel > 1 else []),
        ("replicas", f"{estimate.replicas}{idle}"),
        ("memory while serving", _range_text(estimate.serving_bytes, 1 / gb, "GB per device, cache reserved")),
        ("free KV cache", _range_text(estimate.cache_bytes, 1 / gb, "GB per device")),
        ("tokens in KV cache", _range_text(estimate.tokens_in_cache, 1, "tokens")),
        ("longest context", _value_text(estimate.max_context, "tokens")),
        ("largest batch", _value_text(estimate.max_batch, "requests of this load")),
        ("time to ready", _range_text(estimate.ready_seconds, 1, "s")),
        ("time to first token", _range_text(estimate.ttft_ms, 1, "ms")),
        ("time per output token", _range_text(estimate.tpot_ms, 1, "ms")),
        ("output", _range_text(estimate.output_tokens_per_s, 1, "tokens/s")),
        (
            "price per hour",
            f"{estimate.price_per_hour:,.4g} USD, {estimate.price_note}"
            if estimate.price_per_hour is not None
            else "unknown",
        ),
        ("price per million output tokens", _range_text(estimate.price_per_million_output, 1, "USD")),
        ("optimize job", _range_text(estimate.job_seconds, 1, "s")),
        ("cost of the job", _range_text(estimate.job_cost, 1, "USD")),
        ("disk for the job", f"{estimate.disk_bytes / gb:,.3g} GB"),
        ("memory for the job", f"{estimate.memory_bytes / gb:,.3g} GB"),
    ]
    lines = [f"{name:31} {value}" for name, value in rows]
    if carried := load_words.instances_sentence(estimate):
        lines += ["", carried]
    lines += [f"unknown: {reason}" for reason in estimate.unknown]
    lines += ["", estimate.basis]
    lines += _calibration_lines(estimate.calibration) if estimate.calibration else []
    return "\n".join(
        [
            *lines,
            "",
            "All values are estimated:",
            *(f"  {name}: {formula}" for name, formula in estimate.formulas.items()),
        ]
    )


def _work_text(work: TokenWork | None) -> str:
    """Return `0.27 GFLOPs, 0.3 GB read: 0.9 FLOPs per byte, bound by memory (the device balances at 40)`."""
    if work is None:
        return "none: it generates no tokens"
    words = f"{work.flops / 1e9:,.3g} GFLOPs, {work.bytes / 1e9:,.3g} GB read: {work.intensity:,.3g} FLOPs per byte"
    if work.bound is None or work.device_balance is None:
        return words
    return f"{words}, bound by {work.bound} (the device balances at {work.device_balance:,.3g})"


def choice_text(choice: TargetChoice) -> str:
    """Return the winner's estimate, and the first losers with their reasons."""
    head = f"{choice.winner.target}. {choice.why}\n\n{estimate_text(choice.winner)}" if choice.winner else choice.why
    more = len(choice.losers) - LOSERS_SHOWN
    rest = f"\nand {more} more, with --json." if more > 0 else ""
    return f"{head}\n\nThe others:\n{_loser_lines(choice.losers)}{rest}"


def _loser_lines(losers: Sequence[RejectedTarget]) -> str:
    shown = [(loser.target, loser.price_per_hour, loser.why) for loser in losers[:LOSERS_SHOWN]]
    return table(("target", "USD per hour", "reason"), shown)


def preview_text(title: str, preview: OptimizePreview) -> str:
    """Return the steps, the job's needs, where it runs and where its result will be served."""
    steps = [f"  {number}. {step.title}" for number, step in enumerate(preview.plan.steps, 1)] or [
        "  nothing: the original"
    ]
    need = preview.need
    needs = f"  needs {need.disk_bytes / 1e6:.0f} MB of disk and about {need.memory_bytes / 1e6:.0f} MB of memory"
    notes = [f"  {note}" for note in preview.plan.notes]
    return "\n".join([f"{title}:", *steps, needs, *notes, preview.where, *_deployment_lines(preview.deployment)])


def _deployment_lines(deployment: Deployment | None) -> list[str]:
    if deployment is None:
        return []
    price = f", {deployment.price_per_hour:,.4g} USD per hour" if deployment.price_per_hour is not None else ""
    replicas = f", {deployment.replicas} replicas" if deployment.replicas > 1 else ""
    lines = [
        f"\nTo be served on {deployment.target}{price}, tensor parallel {deployment.tensor_parallel}{replicas}. "
        f"{deployment.why}"
    ]
    if deployment.job:
        took = f"{_range_text(deployment.job.seconds, 1, 's')}, {_range_text(deployment.job.cost, 1, 'USD')}"
        lines.append(f"The job itself would be cheapest on {deployment.job.target}: {took} (estimated).")
    return [*lines, "", "The others:", _loser_lines(deployment.losers)] if deployment.losers else lines


def _calibration_lines(calibration: Calibration) -> list[str]:
    """Return the measurements that corrected the estimate, and the error at each level before and after."""
    source = f"evaluation {calibration.evaluation}{calibration.subject} on {calibration.measured_at}"
    head = f"calibrated by {source}, at {streams(calibration.concurrency)}:"
    rows = [
        (point.concurrency, point.metric, figure(point.measured), _percent(point.error), _percent(after.error))
        for point, after in zip(calibration.points, calibration.after, strict=True)
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


def compilation_text(preview: CompilationPreview) -> str:
    """Return the rows of a compilation, its key first, and whether the cache has the result."""
    head = f"{preview.plan.model} for {preview.target}: compilation plan."
    return "\n".join(
        [head, *(f"{name:18} {value}" for name, value in preview.rows), *preview.notes, preview.lookup.sentence]
    )
