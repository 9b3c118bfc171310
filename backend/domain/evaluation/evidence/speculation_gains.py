"""Compares the measured gain of speculation, level by level, with what its acceptance allows and a payoff map predicts.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Comparison, Evaluation, Level, VariantResult
from backend.domain.evaluation.evidence.lossless import differs_by_speculation_only
from backend.domain.evaluation.evidence.schema import Drafting
from backend.domain.load.load import Load


class DraftedLevel(NamedTuple):
    """One variant at one load."""

    result: VariantResult
    level: Level
    drafting: Drafting


def drafted_levels(evaluation: Evaluation, load: Load | None = None) -> list[DraftedLevel]:
    """Return the levels at which something was drafted, of one load or all."""
    return [
        DraftedLevel(result, level, level.drafting)
        for result in evaluation.variants
        for level in result.levels
        if level.drafting is not None and level.drafting.drafts and load in {None, level.load}
    ]


def drafted_loads(evaluation: Evaluation) -> list[Load]:
    return sorted({drafted.level.load for drafted in drafted_levels(evaluation)})


class SpeculationGain(NamedTuple):
    """The gain of a variant at a load over the same variant without speculation.

    `allowed`: the server's tokens per step over all steps, the gain if proposing and verifying cost nothing.
    `measured`: the ratio of throughputs, with its `interval` where it was tested.
    """

    drafted: DraftedLevel
    allowed: float
    measured: float
    interval: tuple[float, float] | None


def measured_gains(evaluation: Evaluation) -> list[SpeculationGain]:
    """Return the gains where the same variant without speculation was measured too."""
    gains: list[SpeculationGain] = []
    for drafted in drafted_levels(evaluation):
        allowed = tokens_per_step(drafted.drafting)
        plain = find_plain_twin(evaluation, drafted.result)
        if allowed is None or plain is None:
            continue
        row = _find_comparison(evaluation, drafted, plain)
        measured = row.ratio if row else _throughput_ratio(drafted, plain)
        if measured:
            gains.append(SpeculationGain(drafted, allowed, measured, row.ci95 if row else None))
    return gains


class PredictedGain(NamedTuple):
    """A gain that a payoff map predicts."""

    gain: float
    interval: tuple[float, float] | None


PredictedGains = Mapping[tuple[str, str], PredictedGain]
"""Predicted gains by name of the variant and key of the load."""


def tokens_per_step(drafting: Drafting) -> float | None:
    """Return the tokens per step over all steps, with a draft or without: each accepted token saved one step."""
    tokens = drafting.generated_tokens
    return tokens / (tokens - drafting.accepted_tokens) if tokens and tokens > drafting.accepted_tokens else None


def find_plain_twin(evaluation: Evaluation, result: VariantResult) -> VariantResult | None:
    """Return the variant that is the same without speculation.

    An artifact that only adds speculation has a copy of the original's weights, so that one is found by its hash.
    """
    for other in evaluation.variants:
        if differs_by_speculation_only(other.variant, result.variant):
            return other
    weights = result.weights_sha256
    for other in evaluation.variants:
        if weights and other.weights_sha256 == weights and other.variant.speculation is None:
            return other
    return None


def _find_comparison(evaluation: Evaluation, drafted: DraftedLevel, plain: VariantResult) -> Comparison | None:
    """Return the comparison of their throughputs, where the baseline is the plain twin."""
    key = (drafted.result.name, plain.name, drafted.level.load)
    rows = (row for row in evaluation.comparison if (row.variant, row.baseline, row.load) == key)
    return next((row for row in rows if higher_is_better(row.metric)), None)


def _throughput_ratio(drafted: DraftedLevel, plain: VariantResult) -> float | None:
    """Return the ratio of the levels' own throughputs."""
    level = next((level for level in plain.levels if level.load == drafted.level.load), None)
    before, after = level and level.output_tokens_per_s, drafted.level.output_tokens_per_s
    return after / before if before and after else None
