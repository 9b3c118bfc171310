"""Enough blocks to decide, and no more: after which blocks is looked, at which level, and when that is enough. Pure.

All of it is fixed before the first block. Looks come after 6, 8, 12, 16, ... blocks, each a third later, up to a cap.
The 0.05 of the whole is spent as the blocks come in by the spending function of K. K. G. Lan and D. L. DeMets (Discrete
sequential boundaries for clinical trials, Biometrika 70, 1983) that resembles the boundaries of O'Brien and Fleming:
next to nothing early, most of it at the end. What is spent between one look and the next is the level of Holm's
procedure at that look. By Bonferroni's inequality over the looks, the chance of a difference that is not there is at
most 0.05 however they depend on each other, and so an interval at the level of the look at which it ended covers its
ratio with at least 95 %, wherever it ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist

from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Comparison
from backend.domain.maths.student_t import SIGNIFICANCE

FIRST_TEST = 6
"""A verdict takes five blocks, and an order of variants and its reverse take turns."""
GROWTH = 4 / 3
LEAST_SPENDING = 1e-5
"""A look at less than this could name nothing that a person would not see: the first looks under a high cap are left
out."""


def test_points(most: int) -> tuple[int, ...]:
    """Blocks in all after which is looked: even numbers, from 6 on where that spends anything, then `most`."""
    found = [min(FIRST_TEST, most)]
    while found[-1] < most:
        following = 2 * math.ceil(found[-1] * GROWTH / 2)
        found.append(min(following, most))
    return tuple(each for each in found if spent_significance(each / most) >= LEAST_SPENDING)


def spent_significance(share: float) -> float:
    """Of 0.05, after a share of the blocks (above 0, up to 1): 2 (1 - Phi(z / sqrt(share))), z the normal quantile of
    0.975."""
    normal = NormalDist()
    return 2 * (1 - normal.cdf(normal.inv_cdf(1 - SIGNIFICANCE / 2) / math.sqrt(share)))


def significance_levels(most: int) -> tuple[float, ...]:
    """The level of each look; they sum to 0.05."""
    after = [0.0, *(spent_significance(blocks / most) for blocks in test_points(most))]
    return tuple(later - earlier for earlier, later in pairwise(after))


def find_undecided(comparison: Sequence[Comparison]) -> list[Comparison]:
    """Throughputs, which the verdict is of, that more blocks may decide: neither a difference nor the same within so
    much yet.

    What no test can be made of, whatever the blocks, is not waited for.
    """
    comparisons = [row for row in comparison if higher_is_better(row.metric) and row.outcome == "undecided"]
    return [row for row in comparisons if row.why is None or row.why.cause == "few_repeats"]
