"""Conditions under which a pipeline fails: `ttft_p95 > 300ms`, `kl_mean > 0.02`, read before the run, judged after it. Pure.

A condition says what is NOT acceptable. It is held against every variant but the baseline (against the only one where there is
one) and, for figures of a level, at every concurrency, or only at the one after `at`. What was not measured cannot pass.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from backend.domain.errors import RequestError
from backend.domain.evaluation import Evaluation, Level, Quality, VariantResult
from backend.domain.wording import figure, streams

LATENCIES = {
    "ttft": "ttft_ms", "tpot": "tpot_ms", "chunk_gap": "chunk_gap_ms", "client_latency": "client_latency_ms",
    "content_latency": "content_latency_ms",
}  # fmt: skip
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
LEVEL_FIELDS = (
    "output_tokens_per_s", "steady_output_tokens_per_s", "input_tokens_per_s", "output_tokens_per_s_per_request",
    "acceptance_rate", "tokens_per_chunk", "invocation_errors", "empty_responses",
)  # fmt: skip
PRICES = ("per_million_input", "per_million_output", "per_million_total")
QUALITY_FIELDS = ("kl_mean", "perplexity", "greedy_match", "exact_match", "token_f1", "first_divergence_share")
TASK = "task."
"""Before the name of a task and its metric."""
VARIANT_FIELDS = ("ready_seconds", "peak_rss_bytes")
MILLISECONDS = {"ms": 1.0, "s": 1000.0, "us": 0.001, "": 1.0}
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le,
}  # fmt: skip
WRITTEN = re.compile(
    r"\s*(?P<metric>task\.[\w-]+\.[\w+,-]+|[a-z_0-9]+)\s*(?P<operator><=|>=|<|>)\s*(?P<value>[-+0-9.eE]+)\s*(?P<unit>ms|us|s|%|)"
    r"(?:\s+at\s+(?P<at>\d+))?\s*"
)


class InvalidGate(RequestError):
    """The condition cannot be read: write it like `ttft_p95 > 300ms` or `kl_mean > 0.02 at 4`."""


class Gate(NamedTuple):
    """One condition. `limit` in the metric's own unit: milliseconds for a latency, a share (0 to 1) where % was written."""

    written: str
    metric: str
    operator: str
    limit: float
    concurrency: int | None = None

    @property
    def needs_quality(self) -> bool:
        return self.metric in QUALITY_FIELDS or self.metric == "perplexity_increase"

    @property
    def needs_price(self) -> bool:
        return self.metric.startswith("price_")


class Breach(NamedTuple):
    """A condition that holds, in words, and where. `value` is None where the figure was not measured."""

    gate: Gate
    variant: str
    concurrency: int | None
    value: float | None

    @property
    def words(self) -> str:
        where = f" at {streams(self.concurrency)}" if self.concurrency else ""
        said = "was not measured" if self.value is None else f"is {figure(self.value)}"
        return f"{self.variant}{where}: {self.gate.metric} {said} (fails if {self.gate.written})"


def metrics() -> list[str]:
    """Every name that a condition may use."""
    latencies = [f"{name}_{statistic}" for name in LATENCIES for statistic in STATISTICS]
    prices = [f"price_{name}" for name in PRICES]
    return [*latencies, *LEVEL_FIELDS, "error_share", *prices, *QUALITY_FIELDS, "perplexity_increase", *VARIANT_FIELDS]


def read(written: str) -> Gate:
    """Raises InvalidGate with one sentence."""
    found = WRITTEN.fullmatch(written)
    if found is None:
        raise InvalidGate(f"--fail-if is wrong: `{written[:80]}` is not a condition such as `ttft_p95 > 300ms`.")
    metric, unit = found["metric"], found["unit"]
    if metric not in metrics() and not metric.startswith(TASK):
        near = get_close_matches(metric, metrics(), 3, 0.4)
        hint = f"did you mean {' or '.join(near)}" if near else f"the names are {', '.join(metrics())}"
        raise InvalidGate(f"--fail-if is wrong: there is no figure `{metric[:60]}`; {hint}?")
    scale = _scale(metric, unit, written)
    at = int(found["at"]) if found["at"] else None
    if at is not None and _of_variant(metric):
        raise InvalidGate(f"--fail-if is wrong: `{metric}` is one figure a variant, so `at {at}` has no meaning; leave it out.")
    try:
        limit = float(found["value"]) * scale
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise InvalidGate(f"--fail-if is wrong: `{found['value'][:40]}` is no number.")
    return Gate(written.strip(), metric, found["operator"], limit, at)


def _scale(metric: str, unit: str, written: str) -> float:
    if _latency(metric):
        if unit == "%":
            raise InvalidGate(f"--fail-if is wrong: `{written[:80]}` gives a latency in %; write ms, s or us.")
        return MILLISECONDS[unit]
    if unit == "s" and metric == "ready_seconds":
        return 1.0
    if unit not in {"", "%"}:
        raise InvalidGate(f"--fail-if is wrong: `{metric}` has no unit {unit}; leave it out.")
    return 0.01 if unit == "%" else 1.0


def check(gates: Sequence[Gate], levels: Sequence[int] | None, *, quality: bool, priced: bool, tasks: Sequence[str] = ()) -> None:
    """Whether the evaluation will give every figure that is asked for; `levels` None where they are not known before, `tasks`
    the figures of its tasks.

    Raises InvalidGate before anything runs.
    """
    for gate in gates:
        if levels is not None and gate.concurrency is not None and gate.concurrency not in levels:
            raise InvalidGate(f"--fail-if is wrong: `{gate.written}` is at a concurrency that is not measured; add it.")
        if gate.needs_quality and not quality:
            raise InvalidGate(f"--fail-if is wrong: `{gate.written}` needs quality, which --no-quality leaves out.")
        if gate.needs_price and not priced:
            raise InvalidGate(f"--fail-if is wrong: `{gate.written}` needs --price-per-hour.")
        if gate.metric.startswith(TASK) and gate.metric not in tasks:
            has = f"the tasks give {', '.join(tasks)}" if tasks else "it needs --tasks"
            raise InvalidGate(f"--fail-if is wrong: there is no figure `{gate.metric[:80]}`; {has}.")


def breaches(evaluation: Evaluation, gates: Sequence[Gate]) -> list[Breach]:
    """Every place where a condition holds or its figure is missing, in the order of the conditions."""
    judged = evaluation.variants[1:] or evaluation.variants
    return [breach for gate in gates for result in judged for breach in _breaches(gate, result)]


def _breaches(gate: Gate, result: VariantResult) -> Iterator[Breach]:
    for concurrency, value in _figures(gate, result):
        if value is None or not math.isfinite(value) or OPERATORS[gate.operator](value, gate.limit):
            yield Breach(gate, result.name, concurrency, value)


def _figures(gate: Gate, result: VariantResult) -> Iterator[tuple[int | None, float | None]]:
    if _of_variant(gate.metric):
        yield None, _variant_figure(gate.metric, result)
        return
    levels = [level for level in result.levels if gate.concurrency in {None, level.concurrency}]
    if not levels:
        yield gate.concurrency, None
    for level in levels:
        yield level.concurrency, _level_figure(gate.metric, level)


def _of_variant(metric: str) -> bool:
    return metric in {*QUALITY_FIELDS, *VARIANT_FIELDS, "perplexity_increase"} or metric.startswith(TASK)


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
    if metric.startswith(TASK):
        return next((score.value for score in result.tasks if score.name == metric), None)
    quality = result.quality
    if quality is None:
        return None
    if metric == "perplexity_increase":
        return _increase(quality)
    value: float | None = getattr(quality, metric)
    # The original's own weights do not diverge from themselves: nothing was scored, nothing is missing.
    return 0.0 if value is None and metric == "kl_mean" and quality.scored == "original" else value


def _increase(quality: Quality) -> float | None:
    before, after = quality.perplexity_original, quality.perplexity
    return after / before - 1 if before and after is not None else None
