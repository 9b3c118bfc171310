"""What guessing ahead gained, level by level, beside what its acceptance allows and what a payoff map predicts.
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Comparison, Evaluation, Level, VariantResult
from backend.domain.evaluation.evidence.lossless import same_but_speculation
from backend.domain.evaluation.evidence.schema import Drafting
from backend.domain.load.load import Load


class Drafted(NamedTuple):
    """One variant at one load."""

    result: VariantResult
    level: Level
    drafting: Drafting


def drafted(evaluation: Evaluation, load: Load | None = None) -> list[Drafted]:
    """Levels at which something was guessed, of one load or all."""
    return [
        Drafted(result, level, level.drafting)
        for result in evaluation.variants
        for level in result.levels
        if level.drafting is not None and level.drafting.drafts and load in {None, level.load}
    ]


def loads(evaluation: Evaluation) -> list[Load]:
    return sorted({each.level.load for each in drafted(evaluation)})


class Gain(NamedTuple):
    """Of a variant at a load, against the same without speculation: tokens a step of the server over all steps, which
    is what it would gain if proposing and verifying cost nothing, and what was measured, with its interval where there
    is one."""

    each: Drafted
    allowed: float
    measured: float
    interval: tuple[float, float] | None


def gains(evaluation: Evaluation) -> list[Gain]:
    """Where the same without speculation was measured beside it."""
    found = []
    for each in drafted(evaluation):
        allowed, plain = per_step(each.drafting), twin(evaluation, each.result)
        row = plain and _compared(evaluation, each, plain)
        measured = row.ratio if row else plain and _ratio(each, plain)
        if allowed is not None and measured:
            found.append(Gain(each, allowed, measured, row.ci95 if row else None))
    return found


class Predicted(NamedTuple):
    """A gain as a payoff map has it."""

    gain: float
    interval: tuple[float, float] | None


PredictedGains = Mapping[tuple[str, str], Predicted]
"""By variant's name and key of the load."""


def per_step(drafting: Drafting) -> float | None:
    """Tokens of all steps, with a draft or without: an accepted token spared one."""
    made = drafting.generated_tokens
    return made / (made - drafting.accepted_tokens) if made and made > drafting.accepted_tokens else None


def twin(evaluation: Evaluation, result: VariantResult) -> VariantResult | None:
    """The variant that is the same without speculation; an artifact that only speculates has a copy of the original's
    weights."""
    own = result.weights_sha256
    same = (each for each in evaluation.variants if same_but_speculation(each.variant, result.variant))
    copies = (
        each for each in evaluation.variants if own and each.weights_sha256 == own and each.variant.speculation is None
    )
    return next(same, None) or next(copies, None)


def _compared(evaluation: Evaluation, each: Drafted, plain: VariantResult) -> Comparison | None:
    """Of their throughputs, where the baseline is the twin."""
    at = (each.result.name, plain.name, each.level.load)
    rows = (row for row in evaluation.comparison if (row.variant, row.baseline, row.load) == at)
    return next((row for row in rows if higher_is_better(row.metric)), None)


def _ratio(each: Drafted, plain: VariantResult) -> float | None:
    """Of the levels' own throughputs."""
    level = next((level for level in plain.levels if level.load == each.level.load), None)
    before, after = level and level.output_tokens_per_s, each.level.output_tokens_per_s
    return after / before if before and after else None
