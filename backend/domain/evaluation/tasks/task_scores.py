"""Compares the variants' scores in lm-eval tasks with the first variant's, Holm-corrected over all tests. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import Field

from backend.domain.evaluation.outcome import Obstacle, Outcome, significance_outcome
from backend.domain.frozen import Frozen
from backend.domain.maths.intervals import HolmResult, holm, wilson
from backend.domain.maths.paired_scores import Difference, UnpairedDifference, paired_difference
from backend.domain.maths.student_t import SIGNIFICANCE

SAMPLES_FOR_VERDICT = 20
ROUNDING = 1e-9


class TaskScore(Frozen):
    """`stderr` and `value` in the metric's own unit, a share from 0 to 1 for an accuracy.

    `difference` is variant less baseline, over the `compared` samples that both were scored on; None for the baseline.
    `ci95` and `p_value` are corrected for all tests of the evaluation's tasks (Holm), as in `Comparison`.
    """

    task: str
    metric: str
    value: float
    stderr: float | None
    samples: int
    higher_is_better: bool
    harness: str
    """Name and version of what scored it."""
    sha256: str
    """SHA-256 of the task's file and its data."""
    cut: int = 0
    """Prompts that were longer than the context and lost their beginning."""
    floor: float | None = Field(None, exclude_if=lambda value: value is None)
    """The share that guessing reaches on these samples; None where the score is no share, or nobody knows."""
    items: int | None = Field(None, exclude_if=lambda value: value is None)
    """Samples of the whole task; None in evaluations of before."""
    licence: str | None = Field(None, exclude_if=lambda value: value is None)
    source: str | None = Field(None, exclude_if=lambda value: value is None)
    """Licence and origin of the data, where the task says them."""
    compared: int | None = None
    difference: float | None = None
    ci95: tuple[float, float] | None = None
    p_value: float | None = None
    outcome: Outcome | None = None
    """None where it was not compared."""
    why: Obstacle | None = None
    """None of a test."""

    @property
    def name(self) -> str:
        """Return the name that a condition uses: `task.TASK.METRIC`."""
        return f"task.{self.task}.{self.metric}"

    @property
    def share_ci95(self) -> tuple[float, float] | None:
        """Return the 95% score interval of a share that has a floor; None for other figures."""
        return None if self.floor is None else wilson(self.value * self.samples, self.samples)

    @property
    def is_guessing(self) -> bool:
        """Tell whether the score is not above what guessing reaches, as far as its interval shows."""
        interval = self.share_ci95
        return interval is not None and self.floor is not None and interval[0] <= self.floor


class SampledScore(NamedTuple):
    """A score before it is compared. `each`: sample -> its own score; None where the score is not their mean."""

    score: TaskScore
    each: Mapping[int, float] | None


class _Pair(NamedTuple):
    variant: int
    place: int
    difference: Difference
    samples: int


def with_samples(score: TaskScore, each: Mapping[int, float]) -> SampledScore:
    """Add the samples' own scores, if the score is their mean."""
    numbers = [value for value in each.values() if math.isfinite(value)]
    mean = math.fsum(numbers) / len(numbers) if numbers and len(numbers) == len(each) else math.nan
    return SampledScore(score, each if abs(mean - score.value) < ROUNDING else None)


def compare_scores(scored: Mapping[int, Sequence[SampledScore]]) -> dict[int, list[TaskScore]]:
    """Return the scores by variant with their differences from variant 0, where that was scored too.

    A verdict takes SAMPLES_FOR_VERDICT samples. Never raises on odd figures: `why` says what prevents a test.
    """
    scores = {variant: [each.score for each in own] for variant, own in scored.items()}
    pairs = [pair for variant, own in scored.items() if variant for pair in _pairs(variant, own, scored.get(0, ()))]
    testable = [(pair, p) for pair in pairs if (p := pair.difference.p_value) is not None and _obstacle(pair) is None]
    alphas = {id(pair): each for (pair, _), each in zip(testable, holm([p for _, p in testable]), strict=True)}
    for pair in pairs:
        score, tested = scores[pair.variant][pair.place], alphas.get(id(pair))
        scores[pair.variant][pair.place] = score.model_copy(update=_compared(score, pair, tested))
    return scores


def _compared(score: TaskScore, pair: _Pair, tested: HolmResult | None) -> dict[str, object]:
    """`pair` has an obstacle wherever it was not `tested`."""
    why, value = _obstacle(pair), pair.difference.value
    significant = tested is not None and tested.p_adjusted <= SIGNIFICANCE
    return {
        "compared": pair.samples,
        "difference": value,
        "ci95": pair.difference.interval(tested.alpha if tested else SIGNIFICANCE),
        "p_value": tested.p_adjusted if tested else None,
        "outcome": why.outcome if why else significance_outcome(significant, (value > 0) == score.higher_is_better),
        "why": why,
    }


def _pairs(variant: int, own: Sequence[SampledScore], baseline: Sequence[SampledScore]) -> list[_Pair]:
    scores = {(each.score.task, each.score.metric): each for each in baseline}
    pairs = []
    for place, each in enumerate(own):
        against = scores.get((each.score.task, each.score.metric))
        if against is not None and (pair := _difference(against, each)) is not None:
            pairs.append(_Pair(variant, place, *pair))
    return pairs


def _difference(baseline: SampledScore, variant: SampledScore) -> tuple[Difference, int] | None:
    if baseline.each is not None and variant.each is not None:
        shared = sorted(baseline.each.keys() & variant.each.keys())
        return (
            (paired_difference([baseline.each[k] for k in shared], [variant.each[k] for k in shared]), len(shared))
            if shared
            else None
        )
    errors = [each.score.stderr or 0.0 for each in (baseline, variant)]
    samples = min(baseline.score.samples, variant.score.samples)
    return UnpairedDifference(variant.score.value - baseline.score.value, math.hypot(*errors)), samples


def _obstacle(pair: _Pair) -> Obstacle | None:
    if pair.samples < SAMPLES_FOR_VERDICT:
        return Obstacle(cause="few_samples", count=pair.samples, of=SAMPLES_FOR_VERDICT)
    if pair.difference.p_value is None:
        return Obstacle(cause="no_spread" if pair.difference.value else "identical")
    return None
