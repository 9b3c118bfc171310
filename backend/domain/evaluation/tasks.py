"""The tasks' scores of each variant against the first one's: Holm-corrected over all of an evaluation's tests. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from backend.domain.evaluation.comparison import holm
from backend.domain.evaluation.task_score import TaskScore
from backend.domain.figures import figure
from backend.domain.maths.paired import Apart, Difference, paired
from backend.domain.maths.student_t import SIGNIFICANCE

SAMPLES_FOR_VERDICT = 20
ROUNDING = 1e-9


class Scored(NamedTuple):
    """A score before it is compared. `each`: sample -> its own score, None where the score is no mean of these."""

    score: TaskScore
    each: Mapping[int, float] | None


class _Pair(NamedTuple):
    variant: int
    place: int
    difference: Difference
    samples: int


def of_samples(score: TaskScore, each: Mapping[int, float]) -> Scored:
    """With the samples' own scores, where their mean is the score."""
    numbers = [value for value in each.values() if math.isfinite(value)]
    mean = math.fsum(numbers) / len(numbers) if numbers and len(numbers) == len(each) else math.nan
    return Scored(score, each if abs(mean - score.value) < ROUNDING else None)


def compare(found: Mapping[int, Sequence[Scored]]) -> dict[int, list[TaskScore]]:
    """Scores by variant with their differences to variant 0, which has none; nothing is compared where it was not scored.

    A verdict takes SAMPLES_FOR_VERDICT samples. Never raises on odd figures: the verdict says what stands in the way.
    """
    scores = {variant: [each.score for each in own] for variant, own in found.items()}
    pairs = [pair for variant, own in found.items() if variant for pair in _pairs(variant, own, found.get(0, ()))]
    tests = [(pair, pair.difference.p_value) for pair in pairs if pair.samples >= SAMPLES_FOR_VERDICT]
    testable = [(pair, p) for pair, p in tests if p is not None]
    alphas = {id(pair): each for (pair, _), each in zip(testable, holm([p for _, p in testable]), strict=True)}
    for pair in pairs:
        score, tested = scores[pair.variant][pair.place], alphas.get(id(pair))
        interval = pair.difference.interval(tested.alpha if tested else SIGNIFICANCE)
        p_value = tested.p_adjusted if tested else None
        said = _verdict(score, pair, interval, p_value)
        told = {
            "compared": pair.samples,
            "difference": pair.difference.value,
            "ci95": interval,
            "p_value": p_value,
            "verdict": said,
        }
        scores[pair.variant][pair.place] = score.model_copy(update=told)
    return scores


def _pairs(variant: int, own: Sequence[Scored], baseline: Sequence[Scored]) -> list[_Pair]:
    known = {(each.score.task, each.score.metric): each for each in baseline}
    found = []
    for place, each in enumerate(own):
        against = known.get((each.score.task, each.score.metric))
        if against is not None and (pair := _difference(against, each)) is not None:
            found.append(_Pair(variant, place, *pair))
    return found


def _difference(baseline: Scored, variant: Scored) -> tuple[Difference, int] | None:
    if baseline.each is not None and variant.each is not None:
        shared = sorted(baseline.each.keys() & variant.each.keys())
        return (paired([baseline.each[k] for k in shared], [variant.each[k] for k in shared]), len(shared)) if shared else None
    errors = [each.score.stderr or 0.0 for each in (baseline, variant)]
    samples = min(baseline.score.samples, variant.score.samples)
    return Apart(variant.score.value - baseline.score.value, math.hypot(*errors)), samples


def _verdict(score: TaskScore, pair: _Pair, interval: tuple[float, float] | None, p_value: float | None) -> str:
    value = pair.difference.value
    if pair.samples < SAMPLES_FOR_VERDICT:
        return f"too few samples for a verdict ({pair.samples}, it takes {SAMPLES_FOR_VERDICT})"
    if interval is None or p_value is None:
        return "the same score on every sample" if value == 0 else "no verdict: there is no spread to test against"
    around = f"95% {_signed(interval[0])} to {_signed(interval[1])}"
    if p_value > SIGNIFICANCE:
        return f"no significant difference ({_signed(value)}, {around})"
    return f"{'better' if (value > 0) == score.higher_is_better else 'worse'} ({_signed(value)}, {around})"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{figure(value)}"
