"""Percentiles and summaries of samples, standard library only. Knows nothing of what was sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from backend.domain.maths.student_t import quantile


def percentile(ordered: Sequence[float], q: float) -> float:
    """The q-th percentile (0 to 100) of a sorted, non-empty sample by linear interpolation between the two nearest ranks:
    numpy's default, type 7 of Hyndman and Fan 1996."""
    if not ordered:
        raise ValueError("a percentile needs at least one value")
    rank = (len(ordered) - 1) * q / 100
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    between = ordered[below] + (ordered[above] - ordered[below]) * (rank - below)
    return min(between, ordered[above])


def mean_ci95(means: Sequence[float]) -> tuple[float, float] | None:
    """The 95% t interval of the mean of independent values, here one a repeat; None for fewer than two."""
    if len(means) < 2:
        return None
    centre = fmean(means)
    half = quantile(0.975, len(means) - 1) * stdev(means) / math.sqrt(len(means))
    return (centre - half, centre + half)


Z = 1.959964
"""Standard normal quantile of 97.5%."""


def wilson(within: float, of: float) -> tuple[float, float]:
    """The 95% score interval of a share; (0, 1) of nothing. Counts need not be whole where draws weigh unlike."""
    if of == 0:
        return 0.0, 1.0
    share, z2 = within / of, Z * Z
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = Z / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)
