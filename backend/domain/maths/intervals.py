"""Percentiles and summaries of samples, standard library only. Knows nothing of what was sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from backend.domain.evaluation.document import Summary
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


def summary(repeats: Sequence[Sequence[float]]) -> Summary | None:
    """Order statistics over all values of all repeats; the interval over the means of the repeats. None without a value."""
    ordered = sorted(value for repeat in repeats for value in repeat)
    if not ordered:
        return None
    return Summary(
        mean=fmean(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        ci95=mean_ci95([fmean(repeat) for repeat in repeats if repeat]),
    )
