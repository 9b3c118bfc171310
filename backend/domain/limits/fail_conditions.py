"""Conditions under which a pipeline fails: `ttft_p95 > 300ms`, `kl_mean > 0.02`, read before the run, judged after it.
Pure.

A condition says what is NOT acceptable. It is held against every variant but the baseline (against the only one where
there is one) and, for figures of a level, at every load that was asked for, or only at the one after `at`: `at 4` is 4
streams, of an open loop 4 requests a second, as `at 4/s` is; never the mean number under way. What was not measured, or
not in every repeat, cannot pass.
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
from backend.domain.figures import counted, figure
from backend.domain.load.load import Load

LATENCIES = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "chunk_gap": "chunk_gap_ms",
    "client_latency": "client_latency_ms",
    "content_latency": "content_latency_ms",
}
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
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
"""Before the name of a task and its metric."""
VARIANT_FIELDS = ("ready_seconds", "peak_rss_bytes")
MILLISECONDS = {"ms": 1.0, "s": 1000.0, "us": 0.001, "": 1.0}
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
CONDITION = re.compile(
    r"\s*(?P<metric>task\.[\w-]+\.[\w+,-]+|[a-z_0-9]+)\s*(?P<operator><=|>=|<|>)\s*(?P<value>[-+0-9.eE]+)\s*(?P<unit>ms|us|s|%|)"
    r"(?:\s+at\s+(?P<at>\d+(?:\.\d+)?)(?P<per_second>\s*(?:requests)?/s)?)?\s*"
)


class InvalidGate(RequestError):
    """A condition is wrong: write it like `ttft_p95 > 300ms` or `kl_mean > 0.02 at 4`."""

    def __init__(self, problem: str, *named: str) -> None:
        super().__init__(f"is wrong: {problem}", *named, field="fail_if")


class FailCondition(NamedTuple):
    """One condition. `limit` in the metric's own unit: milliseconds for a latency, a share (0 to 1) where % was
    written.

    `at`: the only load it is held at, streams or requests a second; surely the latter where `per_second`.
    """

    written: str
    metric: str
    operator: str
    limit: float
    at: float | None = None
    per_second: bool = False

    def holds_at(self, load: Load) -> bool:
        known = {"rate", "ramp"} if self.per_second else {"closed", "rate", "ramp"}
        return self.at is None or (load.value == self.at and load.mode in known)

    @property
    def needs_quality(self) -> bool:
        return self.metric in QUALITY_FIELDS or self.metric == "perplexity_increase"

    @property
    def needs_price(self) -> bool:
        return self.metric.startswith("price_")


class Breach(NamedTuple):
    """A condition that holds, in words, and where: `place` is a load in words, None where there is none to name.
    `value` is None where the figure was not measured; `repeats` is (measured, asked) where only some of the repeats
    were."""

    gate: FailCondition
    variant: str
    place: str | None
    value: float | None
    repeats: tuple[int, int] | None = None

    @property
    def words(self) -> str:
        where = f" at {self.place}" if self.place else ""
        said = "was not measured" if self.value is None else f"is {figure(self.value)}"
        if self.repeats is not None:
            said = f"was measured in only {self.repeats[0]} of {counted(self.repeats[1], 'repeat')}"
        return f"{self.variant}{where}: {self.gate.metric} {said} (fails if {self.gate.written})"


def metric_names() -> list[str]:
    """Every name that a condition may use."""
    latencies = [f"{name}_{statistic}" for name in LATENCIES for statistic in STATISTICS]
    prices = [f"price_{name}" for name in PRICES]
    return [*latencies, *LEVEL_FIELDS, "error_share", *prices, *QUALITY_FIELDS, "perplexity_increase", *VARIANT_FIELDS]


def parse_condition(written: str) -> FailCondition:
    """Raises InvalidGate with one sentence."""
    match = CONDITION.fullmatch(written)
    if match is None:
        raise InvalidGate(f"`{written[:80]}` is not a condition such as `ttft_p95 > 300ms`.")
    metric, unit = match["metric"], match["unit"]
    if metric not in metric_names() and not metric.startswith(TASK_PREFIX):
        near = get_close_matches(metric, metric_names(), 3, 0.4)
        hint = f"did you mean {' or '.join(near)}" if near else f"the names are {', '.join(metric_names())}"
        raise InvalidGate(f"there is no figure `{metric[:60]}`; {hint}?")
    scale = _scale(metric, unit, written)
    at = float(match["at"]) if match["at"] else None
    if at is not None and _of_variant(metric):
        raise InvalidGate(f"`{metric}` is one figure a variant, so `at {at:g}` has no meaning; leave it out.")
    try:
        limit = float(match["value"]) * scale
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise InvalidGate(f"`{match['value'][:40]}` is no number.")
    return FailCondition(written.strip(), metric, match["operator"], limit, at, match["per_second"] is not None)


def _scale(metric: str, unit: str, written: str) -> float:
    if _latency(metric):
        if unit == "%":
            raise InvalidGate(f"`{written[:80]}` gives a latency in %; write ms, s or us.")
        return MILLISECONDS[unit]
    if unit == "s" and metric == "ready_seconds":
        return 1.0
    if unit not in {"", "%"}:
        raise InvalidGate(f"`{metric}` has no unit {unit}; leave it out.")
    return 0.01 if unit == "%" else 1.0


def fixed_loads(options: EvaluateOptions) -> list[Load] | None:
    """Those at which conditions can be held; None of a search, which chooses its own."""
    return None if options.sweep else options.loads


def check_conditions(gates: Sequence[FailCondition], options: EvaluateOptions, tasks: Sequence[str] = ()) -> None:
    """Whether the evaluation will give every figure that is asked for; `tasks` are the figures of its tasks.

    Raises InvalidGate before anything runs.
    """
    levels = fixed_loads(options)
    for gate in gates:
        if levels is not None and not any(map(gate.holds_at, levels)):
            measured = ", ".join(load.words for load in levels)
            said = f"is at a load that is not measured; add it (measured: {measured}), or leave out `at`"
            raise InvalidGate(f"`{gate.written}` {said}.")
        if gate.needs_quality and not options.quality:
            raise InvalidGate(f"`{gate.written}` needs quality, which {{}} leaves out.", "quality")
        if gate.metric == "ready_seconds" and options.interleave != "restart" and not options.starts_apart:
            raise InvalidGate(f"`{gate.written}` needs {{}}.", "starts_apart")
        if gate.needs_price and options.price_per_hour is None:
            raise InvalidGate(f"`{gate.written}` needs {{}}.", "price_per_hour")
        if gate.metric.startswith(TASK_PREFIX) and gate.metric not in tasks:
            has = f"the tasks give {', '.join(tasks)}" if tasks else "it needs {}"
            raise InvalidGate(f"there is no figure `{gate.metric[:80]}`; {has}.", "tasks")


def find_breaches(evaluation: Evaluation, gates: Sequence[FailCondition]) -> list[Breach]:
    """Every place where a condition holds or its figure is missing, in the order of the conditions."""
    judged = evaluation.variants[1:] or evaluation.variants
    return [breach for gate in gates for result in judged for breach in _breaches(gate, result, evaluation.options)]


def _breaches(gate: FailCondition, result: VariantResult, options: EvaluateOptions) -> Iterator[Breach]:
    if _of_variant(gate.metric):
        yield from _held(gate, result.name, None, _variant_figure(gate.metric, result))
        return
    loads = fixed_loads(options)
    wanted = [load for load in (loads or [level.load for level in result.levels]) if gate.holds_at(load)]
    # A search that was cut short would have tried more, nobody knows what.
    if not wanted or (loads is None and gate.at is None and result.lost):
        yield Breach(gate, result.name, None, None)
    for load in wanted:
        yield from _at(gate, result, load, options.repeats if loads else 1)


def _at(gate: FailCondition, result: VariantResult, load: Load, repeats: int) -> Iterator[Breach]:
    """It holds, or is missing, or some of its repeats are."""
    level = next((level for level in result.levels if level.load == load), None)
    value = _level_figure(gate.metric, level) if level else None
    found = list(_held(gate, result.name, load.words, value))
    if level and not found and level.repeats < repeats:
        found = [Breach(gate, result.name, load.words, value, (level.repeats, repeats))]
    yield from found


def _held(gate: FailCondition, variant: str, place: str | None, value: float | None) -> Iterator[Breach]:
    if value is None or not math.isfinite(value) or OPERATORS[gate.operator](value, gate.limit):
        yield Breach(gate, variant, place, value)


def _of_variant(metric: str) -> bool:
    return metric in {*QUALITY_FIELDS, *VARIANT_FIELDS, "perplexity_increase"} or metric.startswith(TASK_PREFIX)


def _latency(metric: str) -> tuple[str, str] | None:
    name, _, statistic = metric.rpartition("_")
    return (LATENCIES[name], statistic) if name in LATENCIES and statistic in STATISTICS else None


def _level_figure(metric: str, level: Level) -> float | None:
    found = _latency(metric)
    if found:
        summary = getattr(level, found[0])
        return getattr(summary, found[1]) if summary else None
    if metric.startswith("price_"):
        return getattr(level.price, metric.removeprefix("price_")) if level.price else None
    if metric == "error_share":
        return level.invocation_errors / level.invocations if level.invocations else None
    value: float | None = getattr(level, metric)
    return value


def _variant_figure(metric: str, result: VariantResult) -> float | None:
    if metric in VARIANT_FIELDS:
        own: float | None = getattr(result, metric)
        return own
    if metric.startswith(TASK_PREFIX):
        return next((score.value for score in result.tasks if score.name == metric), None)
    quality = result.quality
    if quality is None:
        return None
    if metric == "perplexity_increase":
        before, after = quality.perplexity_original, quality.perplexity
        return after / before - 1 if before and after is not None else None
    value: float | None = getattr(quality, metric)
    # The original's own weights do not diverge from themselves: nothing was scored, nothing is missing.
    return 0.0 if value is None and metric == "kl_mean" and quality.scored == "original" else value
