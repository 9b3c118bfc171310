"""Compares two variants that were scored on the same samples: difference of the means, interval and p-value.

Samples are paired, since both answered the same questions: what is hard for one is hard for the other, and an interval
made of two separate errors would be too wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple, Protocol

from backend.domain.maths import student_t

_NORMAL = NormalDist()


class Difference(Protocol):
    """Variant minus baseline, in the metric's own unit."""

    @property
    def value(self) -> float: ...

    @property
    def p_value(self) -> float | None:
        """Two-sided p-value of no difference; None where nothing varies."""

    def interval(self, alpha: float) -> tuple[float, float] | None:
        """Return the interval at confidence 1 - alpha; None where nothing varies.

        It contains 0 wherever `p_value` is above alpha.
        """


class MatchedProportions(NamedTuple):
    """The difference of scores that are 0 or 1: `won` samples only the variant got right, `lost` only the baseline.

    The interval is that of Agresti and Min, Simple improved confidence intervals for comparing matched proportions
    (Statistics in Medicine 24, 2005): half a sample is added to each of the four cells, so that it has a width where no
    sample differs. The p-value is the larger of that and of McNemar's exact test (1947), since the former is too small
    for few differences.
    """

    won: int
    lost: int
    samples: int

    @property
    def value(self) -> float:
        return (self.won - self.lost) / self.samples

    @property
    def p_value(self) -> float:
        middle, error = self._adjusted()
        return max(_mcnemar(self.won, self.lost), 2 * (1 - _NORMAL.cdf(abs(middle) / error)))

    def interval(self, alpha: float) -> tuple[float, float]:
        middle, error = self._adjusted()
        half = _NORMAL.inv_cdf(1 - alpha / 2) * error
        low, high = max(-1.0, middle - half), min(1.0, middle + half)
        return (min(low, 0.0), max(high, 0.0)) if self.p_value > alpha else (low, high)

    def _adjusted(self) -> tuple[float, float]:
        """Return the difference and its standard error with half a sample added to each cell."""
        total = self.samples + 2
        middle = (self.won - self.lost) / total
        return middle, math.sqrt(((self.won + self.lost + 1) / total - middle * middle) / total)


class PairedMeans(NamedTuple):
    """The difference of scores of any value: the paired t-interval over the samples' `differences`."""

    differences: tuple[float, ...]

    @property
    def value(self) -> float:
        return fmean(self.differences)

    @property
    def p_value(self) -> float | None:
        error = self._error()
        return student_t.two_sided_p(self.value / error, len(self.differences) - 1) if error else None

    def interval(self, alpha: float) -> tuple[float, float] | None:
        error = self._error()
        if not error:
            return None
        half = student_t.quantile(1 - alpha / 2, len(self.differences) - 1) * error
        return self.value - half, self.value + half

    def _error(self) -> float:
        return stdev(self.differences) / math.sqrt(len(self.differences)) if len(self.differences) > 1 else 0.0


class UnpairedDifference(NamedTuple):
    """The difference of a figure that is not a mean over samples, such as BLEU: from both standard errors, unpaired."""

    value: float
    error: float

    @property
    def p_value(self) -> float | None:
        return 2 * (1 - _NORMAL.cdf(abs(self.value) / self.error)) if self.error else None

    def interval(self, alpha: float) -> tuple[float, float] | None:
        if not self.error:
            return None
        half = _NORMAL.inv_cdf(1 - alpha / 2) * self.error
        return self.value - half, self.value + half


def paired_difference(baseline: Sequence[float], variant: Sequence[float]) -> Difference:
    """Compare scores of the same samples, paired by position. Raises ValueError for lists of different length or empty
    ones."""
    pairs = list(zip(baseline, variant, strict=True))
    if not pairs:
        raise ValueError("there are no samples")
    if all(value in (0.0, 1.0) for pair in pairs for value in pair):
        return MatchedProportions(sum(b > a for a, b in pairs), sum(b < a for a, b in pairs), len(pairs))
    return PairedMeans(tuple(b - a for a, b in pairs))


def _mcnemar(won: int, lost: int) -> float:
    """Return the two-sided probability of such an uneven split, were both directions equally likely.

    In whole numbers and so exact, where scipy's binomial distribution is right to 12 digits.
    """
    total, tail, combinations = won + lost, 0, 1
    for k in range(min(won, lost) + 1):
        tail += combinations
        combinations = combinations * (total - k) // (k + 1)
    return min(1.0, 2 * tail / (1 << total))
