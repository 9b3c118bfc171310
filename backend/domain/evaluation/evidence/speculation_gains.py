"""What guessing ahead gained, level by level, beside what its acceptance allows and what a payoff map predicts.
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
    """Levels at which something was guessed, of one load or all."""
    return [
        DraftedLevel(result, level, level.drafting)
        for result in evaluation.variants
        for level in result.levels
        if level.drafting is not None and level.drafting.drafts and load in {None, level.load}
    ]


def drafted_loads(evaluation: Evaluation) -> list[Load]:
    return sorted({each.level.load for each in drafted_levels(evaluation)})


class SpeculationGain(NamedTuple):
    """Of a variant at a load, against the same without speculation: tokens a step of the server over all steps, which
    is what it would gain if proposing and verifying cost nothing, and what was measured, with its interval where there
    is one."""

    each: DraftedLevel
    allowed: float
    measured: float
    interval: tuple[float, float] | None


def measured_gains(evaluation: Evaluation) -> list[SpeculationGain]:
    """Where the same without speculation was measured beside it."""
    found = []
    for each in drafted_levels(evaluation):
        allowed, plain = tokens_per_step(each.drafting), find_plain_twin(evaluation, each.result)
        row = plain and _compared(evaluation, each, plain)
        measured = row.ratio if row else plain and _ratio(each, plain)
        if allowed is not None and measured:
            found.append(SpeculationGain(each, allowed, measured, row.ci95 if row else None))
    return found


class PredictedGain(NamedTuple):
    """A gain as a payoff map has it."""

    gain: float
    interval: tuple[float, float] | None


PredictedGains = Mapping[tuple[str, str], PredictedGain]
"""By variant's name and key of the load."""


def tokens_per_step(drafting: Drafting) -> float | None:
    """Tokens of all steps, with a draft or without: an accepted token spared one."""
    made = drafting.generated_tokens
    return made / (made - drafting.accepted_tokens) if made and made > drafting.accepted_tokens else None


def find_plain_twin(evaluation: Evaluation, result: VariantResult) -> VariantResult | None:
    """The variant that is the same without speculation; an artifact that only speculates has a copy of the original's
    weights."""
    own = result.weights_sha256
    same = (each for each in evaluation.variants if differs_by_speculation_only(each.variant, result.variant))
    copies = (
        each for each in evaluation.variants if own and each.weights_sha256 == own and each.variant.speculation is None
    )
    return next(same, None) or next(copies, None)


def _compared(evaluation: Evaluation, each: DraftedLevel, plain: VariantResult) -> Comparison | None:
    """Of their throughputs, where the baseline is the twin."""
    at = (each.result.name, plain.name, each.level.load)
    rows = (row for row in evaluation.comparison if (row.variant, row.baseline, row.load) == at)
    return next((row for row in rows if higher_is_better(row.metric)), None)


def _ratio(each: DraftedLevel, plain: VariantResult) -> float | None:
    """Of the levels' own throughputs."""
    level = next((level for level in plain.levels if level.load == each.level.load), None)
    before, after = level and level.output_tokens_per_s, each.level.output_tokens_per_s
    return after / before if before and after else None
