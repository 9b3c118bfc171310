"""Percentiles and intervals of samples, and Holm's correction of many tests.

Written by hand: the process that sends load takes percentiles and has no numpy; scipy's score interval takes whole
counts only, and scipy has no correction by Holm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from backend.domain.maths.serial_mean import SerialMean
from backend.domain.maths.student_t import SIGNIFICANCE, quantile

Z = 1.959964
"""Standard normal quantile of 97.5%."""


def percentile(ordered: Sequence[float], q: float) -> float:
    """Return the q-th percentile (0 to 100) of a sorted, non-empty sample by linear interpolation between the two
    nearest ranks: numpy's default, type 7 of Hyndman and Fan 1996."""
    if not ordered:
        raise ValueError("a percentile needs at least one value")
    rank = (len(ordered) - 1) * q / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    between = ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
    return min(between, ordered[above])


def mean_ci95(means: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% t interval of the mean of independent values; None for fewer than two."""
    if len(means) < 2:
        return None
    centre = fmean(means)
    half = quantile(0.975, len(means) - 1) * stdev(means) / math.sqrt(len(means))
    return (centre - half, centre + half)


def serial_mean_ci95(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of the mean of values in the order of measuring; None for fewer than two."""
    if len(values) < 2:
        return None
    mean = SerialMean(tuple(values))
    return mean.interval(SIGNIFICANCE) or (mean.value, mean.value)


def factor_ci95(values: Sequence[float]) -> float | None:
    """Return the factor by which the 95% interval of a geometric mean reaches above and below it.

    `values` are in the order of measuring. None for fewer than three values, or where one is not above 0.
    """
    if len(values) < 3 or min(values) <= 0:
        return None
    mean = SerialMean(tuple(math.log(value) for value in values))
    interval = mean.interval(SIGNIFICANCE)
    return math.exp(min(700.0, interval[1] - mean.value)) if interval else 1.0


def wilson(within: float, total: float) -> tuple[float, float]:
    """Return the 95% score interval of the share `within` / `total`; (0, 1) where the total is 0.

    Counts need not be whole numbers, for draws of different weights.
    """
    if total == 0:
        return 0.0, 1.0
    share, z2 = within / total, Z * Z
    middle = (share + z2 / (2 * total)) / (1 + z2 / total)
    half = Z / (1 + z2 / total) * math.sqrt(share * (1 - share) / total + z2 / (4 * total * total))
    return max(0.0, middle - half), min(1.0, middle + half)


class HolmResult(NamedTuple):
    """The result for one hypothesis of a family: its corrected p-value, and the alpha of its interval."""

    p_adjusted: float
    alpha: float


def holm(p_values: Sequence[float], alpha: float = SIGNIFICANCE) -> list[HolmResult]:
    """Return the adjusted p-value and the alpha of each hypothesis, in the given order (Holm 1979)."""
    results: dict[int, HolmResult] = {}
    adjusted, stopped_at = 0.0, None
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        remaining = len(p_values) - rank
        adjusted = max(adjusted, min(1.0, remaining * p_values[index]))
        if stopped_at is None and adjusted > alpha:
            stopped_at = alpha / remaining
        results[index] = HolmResult(adjusted, stopped_at or alpha / remaining)
    return [results[index] for index in range(len(p_values))]
