"""Computes the mean of measurements taken one after another, with an interval that allows for what neighbours share.

A machine that is slow for a while slows several measurements in a row, so they are not independent. The usual standard
error would then be too small. The one used here is taken from the slow part of the variation alone: the series is
projected on its first cosines, and the mean square of these coefficients estimates the variance that the mean sees.
With `terms` cosines the ratio of mean and standard error has Student's t distribution with so many degrees of freedom,
whatever the correlation between neighbours, if that has died out within a few terms' length (U. K. Mueller, HAR
inference, Journal of Business and Economic Statistics 32, 2014; E. Lazarus, D. J. Lewis, J. H. Stock and M. W. Watson,
HAR Inference: Recommendations for Practice, the same journal 36, 2018, equation 10).
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import fmean
from typing import NamedTuple

from backend.domain.maths import student_t

LEAST_TERMS = 8
"""With fewer degrees of freedom an interval is mostly the price of not knowing the spread."""
RULE_FACTOR, RULE_POWER = 0.4, 2 / 3
"""The rule of Lazarus and others: 0.4 n^(2/3) terms for n measurements."""


def terms(count: int) -> int:
    """Return the number of cosines for so many measurements: all of them up to nine, where it is the paired t-test."""
    return min(count - 1, max(LEAST_TERMS, math.ceil(RULE_FACTOR * math.pow(count, RULE_POWER))))


class SerialMean(NamedTuple):
    """The mean of `values`, which are in the order of measuring."""

    values: tuple[float, ...]

    @property
    def value(self) -> float:
        return fmean(self.values)

    @property
    def p_value(self) -> float | None:
        """Two-sided p-value of a mean of 0; None where nothing varies."""
        error = self.standard_error
        return student_t.two_sided_p(self.value / error, terms(len(self.values))) if error else None

    def interval(self, alpha: float) -> tuple[float, float] | None:
        """Return the interval of the mean at confidence 1 - alpha; None where nothing varies."""
        error = self.standard_error
        if not error:
            return None
        half = student_t.quantile(1 - alpha / 2, terms(len(self.values))) * error
        return self.value - half, self.value + half

    @property
    def spread(self) -> float:
        """Return the standard deviation that one measurement would have if all were independent; 0 for fewer than
        two."""
        count = len(self.values)
        if count < 2:
            return 0.0
        mean = self.value
        deviations = [value - mean for value in self.values]
        coefficients = [
            math.fsum(weight * deviation for weight, deviation in zip(cosine, deviations, strict=True))
            for cosine in _cosines(count)
        ]
        return math.sqrt(fmean(coefficient**2 for coefficient in coefficients))

    @property
    def standard_error(self) -> float:
        return self.spread / math.sqrt(len(self.values)) if self.values else 0.0


@lru_cache(maxsize=64)
def _cosines(count: int) -> tuple[tuple[float, ...], ...]:
    """Return the first orthonormal cosines over `count` points; each sums to 0."""
    scale = math.sqrt(2 / count)
    return tuple(
        tuple(scale * math.cos(math.pi * term * (point + 0.5) / count) for point in range(count))
        for term in range(1, terms(count) + 1)
    )
