"""Computes how many paired measurements a decision takes, from the spread of those there are.

Written by hand: scipy has no sample sizes.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from backend.domain.maths.serial_mean import terms
from backend.domain.maths.student_t import POWER, SIGNIFICANCE, quantile

MOST = 1000
"""Nobody would measure more pairs than this."""


def pairs_needed(mean: float, deviation: float, pairs: int, band: float, alpha: float = SIGNIFICANCE) -> int | None:
    """Return the total of pairs with which a test of the mean at `alpha` decides with a probability of 0.8.

    Assumes that mean and deviation (`SerialMean.spread`) are what they seem. None beyond MOST.

    It decides that the mean is not 0 where that is `mean` away, or that it lies within `band` of 0 where it is `mean`
    from the middle: whichever takes fewer. The least n with (t(1 - alpha/2, f) + t(0.8, f)) x deviation / sqrt(n) <=
    distance, f the degrees of freedom of so many pairs: the paired t-test's sample size (Chow, Shao and Wang, Sample
    Size Calculations in Clinical Research, 2nd edition 2008, sections 3.1.1 and 3.1.3), with t in place of z since the
    spread is estimated. Raises ValueError for fewer than two pairs.
    """
    distance = max(abs(mean), band - abs(mean))
    if not _enough(MOST, distance, deviation, alpha):
        return None
    numbers = range(max(2, pairs), MOST)
    return numbers.start + bisect_left(numbers, True, key=lambda number: _enough(number, distance, deviation, alpha))


def _enough(pairs: int, distance: float, deviation: float, alpha: float) -> bool:
    freedom = terms(pairs)
    reach = quantile(1 - alpha / 2, freedom) + quantile(POWER, freedom)
    return reach * deviation / math.sqrt(pairs) <= distance
