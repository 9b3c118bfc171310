"""Conditions under which a pipeline fails: `ttft_p95 > 300ms`, `kl_mean > 0.02`, parsed before a run, judged after it.
Pure.

A condition says what is NOT acceptable. It is judged for every variant but the baseline (for the only one where there
is one) and, for figures of a level, at every load that was requested, or only at the one after `at`: `at 4` is 4
streams, in an open loop 4 requests/s, as `at 4/s` is; never the mean number of requests under way. A figure that was
not measured, or not in every repeat, fails.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from backend.domain.errors import RequestError
from backend.domain.evaluation.document import EvaluateOptions, Evaluation, Level, VariantResult
from backend.domain.evaluation.soundness import measured_blocks
from backend.domain.figures import counted, figure
from backend.domain.limits.latency_limit import METRICS_BY_NAME, STATISTICS
from backend.domain.load.load import Load

LEVEL_FIELDS = (
    "output_tokens_per_s",
    "steady_output_tokens_per_s",
    "input_tokens_per_s",
    "output_tokens_per_s_per_request",
    "acceptance_rate",
    "tokens_per_chunk",
    "invocation_errors",
    "empty_responses",
)
PRICES = ("per_million_input", "per_million_output", "per_million_total")
QUALITY_FIELDS = ("kl_mean", "perplexity", "greedy_match", "exact_match", "token_f1", "first_divergence_share")
TASK_PREFIX = "task."
"""Comes before the name of a task and its metric."""
VARIANT_FIELDS = ("ready_seconds", "peak_rss_bytes")
MILLISECONDS = {"ms": 1.0, "s": 1000.0, "us": 0.001, "": 1.0}
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
CONDITION = re.compile(
    r"\s*(?P<metric>task\.[\w-]+\.[\w+,-]+|[a-z_0-9]+)\s*(?P<operator><=|>=|<|>)"
    r"\s*(?P<value>[-+0-9.eE]+)\s*(?P<unit>ms|us|s|%|)"
    r"(?:\s+at\s+(?P<at>\d+(?:\.\d+)?)(?P<per_second>\s*(?:requests)?/s)?)?\s*"
)


class InvalidGate(RequestError):
    """A condition is wrong: write it like `ttft_p95 > 300ms` or `kl_mean > 0.02 at 4`."""

    def __init__(self, problem: str, *named: str) -> None:
        super().__init__(f"is wrong: {problem}", *named, field="fail_if")


class FailCondition(NamedTuple):
    """One condition. `limit` is in the metric's own unit: milliseconds for a latency, a share (0 to 1) where % was
    written.

    `at` is the only load it is judged at, in streams or requests/s; only the latter where `per_second`.
    """

    written: str
    metric: str
    operator: str
    limit: float
    at: float | None = None
    per_second: bool = False

    def applies_at(self, load: Load) -> bool:
        modes = {"rate", "ramp"} if self.per_second else {"closed", "rate", "ramp"}
        return self.at is None or (load.value == self.at and load.mode in modes)

    @property
    def needs_quality(self) -> bool:
        return self.metric in QUALITY_FIELDS or self.metric == "perplexity_increase"

    @property
    def needs_price(self) -> bool:
        return self.metric.startswith("price_")


class Breach(NamedTuple):
    """A condition that is true, and where: `place` is a load in words, None for a figure of the whole variant.

    `value` is None where the figure was not measured; `repeats` is (measured, requested) where only some were.
    """

    condition: FailCondition
    variant: str
    place: str | None
    value: float | None
    repeats: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        where = f" at {self.place}" if self.place else ""
        problem = "was not measured" if self.value is None else f"is {figure(self.value)}"
        if self.repeats is not None:
            problem = f"was measured in only {self.repeats[0]} of {counted(self.repeats[1], 'repeat')}"
        return f"{self.variant}{where}: {self.condition.metric} {problem} (fails if {self.condition.written})"


def metric_names() -> list[str]:
    """Return every name that a condition may use."""
    latencies = [f"{name}_{statistic}" for name in METRICS_BY_NAME for statistic in STATISTICS]
    prices = [f"price_{name}" for name in PRICES]
    return [*latencies, *LEVEL_FIELDS, "error_share", *prices, *QUALITY_FIELDS, "perplexity_increase", *VARIANT_FIELDS]


def parse_condition(written: str) -> FailCondition:
    """Parse one condition. Raises InvalidGate with one sentence."""
    # 1. Its form, metric and unit.
    match = CONDITION.fullmatch(written)
    if match is None:
        raise InvalidGate(f"`{written[:80]}` is not a condition such as `ttft_p95 > 300ms`.")
    metric, unit = match["metric"], match["unit"]
    if metric not in metric_names() and not metric.startswith(TASK_PREFIX):
        near = get_close_matches(metric, metric_names(), 3, 0.4)
        hint = f"did you mean {' or '.join(near)}" if near else f"the names are {', '.join(metric_names())}"
        raise InvalidGate(f"there is no figure `{metric[:60]}`; {hint}?")
    scale = _scale(metric, unit, written)
    # 2. The load it is for.
    at = float(match["at"]) if match["at"] else None
    if at is not None and _is_of_variant(metric):
        raise InvalidGate(f"`{metric}` is one figure a variant, so `at {at:g}` has no meaning; leave it out.")
    # 3. The limit.
    try:
        limit = float(match["value"]) * scale
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise InvalidGate(f"`{match['value'][:40]}` is no number.")
    return FailCondition(written.strip(), metric, match["operator"], limit, at, match["per_second"] is not None)


def _scale(metric: str, unit: str, written: str) -> float:
    if _latency_field(metric):
        if unit == "%":
            raise InvalidGate(f"`{written[:80]}` gives a latency in %; write ms, s or us.")
        return MILLISECONDS[unit]
    if unit == "s" and metric == "ready_seconds":
        return 1.0
    if unit not in {"", "%"}:
        raise InvalidGate(f"`{metric}` has no unit {unit}; leave it out.")
    return 0.01 if unit == "%" else 1.0


def fixed_loads(options: EvaluateOptions) -> list[Load] | None:
    """Return the loads that will be measured; None for a search, which chooses its own."""
    return None if options.sweep else options.loads


def check_conditions(conditions: Sequence[FailCondition], options: EvaluateOptions, tasks: Sequence[str] = ()) -> None:
    """Require that the evaluation will measure every figure of the conditions; `tasks` are the figures of its tasks.

    Raises InvalidGate before anything runs.
    """
    levels = fixed_loads(options)
    for condition in conditions:
        # 1. The load.
        if levels is not None and not any(map(condition.applies_at, levels)):
            measured = ", ".join(load.words for load in levels)
            problem = f"is at a load that is not measured; add it (measured: {measured}), or leave out `at`"
            raise InvalidGate(f"`{condition.written}` {problem}.")
        # 2. Figures that an option leaves out.
        if condition.needs_quality and not options.quality:
            raise InvalidGate(f"`{condition.written}` needs quality, which {{}} leaves out.", "quality")
        if condition.metric == "ready_seconds" and options.interleave != "restart" and not options.starts_apart:
            raise InvalidGate(f"`{condition.written}` needs {{}}.", "starts_apart")
        if condition.needs_price and options.price_per_hour is None:
            raise InvalidGate(f"`{condition.written}` needs {{}}.", "price_per_hour")
        # 3. Figures of tasks.
        if condition.metric.startswith(TASK_PREFIX) and condition.metric not in tasks:
            known = f"the tasks give {', '.join(tasks)}" if tasks else "it needs {}"
            raise InvalidGate(f"there is no figure `{condition.metric[:80]}`; {known}.", "tasks")


def find_breaches(evaluation: Evaluation, conditions: Sequence[FailCondition]) -> list[Breach]:
    """Return every place where a condition is true or its figure is missing, in the order of the conditions."""
    judged = evaluation.variants[1:] or evaluation.variants
    breaches: list[Breach] = []
    for condition in conditions:
        for result in judged:
            breaches += _find_breaches(condition, result, evaluation.options)
    return breaches


def _find_breaches(condition: FailCondition, result: VariantResult, options: EvaluateOptions) -> Iterator[Breach]:
    # 1. A figure of the whole variant.
    if _is_of_variant(condition.metric):
        yield from _judge(condition, result.name, None, _variant_figure(condition.metric, result))
        return
    # 2. The loads that it is judged at. A search that was cut short would have tried more, which nobody knows.
    loads = fixed_loads(options)
    measured = [level.load for level in result.levels]
    judged = [load for load in (loads or measured) if condition.applies_at(load)]
    if not judged or (loads is None and condition.at is None and result.lost):
        yield Breach(condition, result.name, None, None)
    # 3. Each of them.
    for load in judged:
        yield from _judge_level(condition, result, load, options.repeats if loads else 1)


def _judge_level(condition: FailCondition, result: VariantResult, load: Load, repeats: int) -> Iterator[Breach]:
    """Yield a breach where the condition is true at the load, its figure is missing, or some repeats are."""
    level = next((level for level in result.levels if level.load == load), None)
    value = _level_figure(condition.metric, level) if level else None
    breaches = list(_judge(condition, result.name, load.words, value))
    if level and not breaches and measured_blocks(level) < repeats:
        breaches = [Breach(condition, result.name, load.words, value, (measured_blocks(level), repeats))]
    yield from breaches


def _judge(condition: FailCondition, variant: str, place: str | None, value: float | None) -> Iterator[Breach]:
    is_missing = value is None or not math.isfinite(value)
    if is_missing or OPERATORS[condition.operator](value or 0.0, condition.limit):
        yield Breach(condition, variant, place, value)


def _is_of_variant(metric: str) -> bool:
    return metric in {*QUALITY_FIELDS, *VARIANT_FIELDS, "perplexity_increase"} or metric.startswith(TASK_PREFIX)


def _latency_field(metric: str) -> tuple[str, str] | None:
    """Return (field of a level, statistic) of a latency such as `ttft_p95`; None for another metric."""
    name, _, statistic = metric.rpartition("_")
    known = name in METRICS_BY_NAME and statistic in STATISTICS
    return (METRICS_BY_NAME[name], statistic) if known else None


def _level_figure(metric: str, level: Level) -> float | None:
    latency = _latency_field(metric)
    if latency:
        field, statistic = latency
        summary = getattr(level, field)
        return getattr(summary, statistic) if summary else None
    if metric.startswith("price_"):
        return getattr(level.price, metric.removeprefix("price_")) if level.price else None
    if metric == "error_share":
        return level.invocation_errors / level.invocations if level.invocations else None
    value: float | None = getattr(level, metric)
    return value


def _variant_figure(metric: str, result: VariantResult) -> float | None:
    # 1. Figures that do not need quality.
    if metric in VARIANT_FIELDS:
        variant_value: float | None = getattr(result, metric)
        return variant_value
    if metric.startswith(TASK_PREFIX):
        return next((score.value for score in result.tasks if score.name == metric), None)
    # 2. Quality.
    quality = result.quality
    if quality is None:
        return None
    if metric == "perplexity_increase":
        before, after = quality.perplexity_original, quality.perplexity
        return after / before - 1 if before and after is not None else None
    value: float | None = getattr(quality, metric)
    # The original's own weights do not diverge from themselves: nothing was scored, nothing is missing.
    return 0.0 if value is None and metric == "kl_mean" and quality.scored == "original" else value
