"""Decides after which blocks the comparisons are tested, at which level, and when there are enough blocks. Pure.

All of it is fixed before the first block. Tests come after 6, 8, 12, 16, ... blocks, each a third later, up to a cap.
The 0.05 of the whole is spent as blocks come in, as K. K. G. Lan and D. L. DeMets propose (Discrete sequential
boundaries for clinical trials, Biometrika 70, 1983), by the square of the share of blocks (K. Kim and D. L. DeMets,
Design and analysis of group sequential tests based on the type I error spending rate function, Biometrika 74, 1987):
little early, most of it at the end, and yet enough for a clear gain to be named at the first test. What is spent
between one test and the next is the level of Holm's procedure at that test. By Bonferroni's inequality over the tests,
the chance of a difference that is not there is at most 0.05 however they depend on each other, so an interval at the
level of the last test covers its ratio with at least 95 %, wherever the rule stopped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from backend.domain.evaluation.comparison import is_primary
from backend.domain.evaluation.document import Comparison
from backend.domain.maths.student_t import SIGNIFICANCE

FIRST_TEST = 6
"""Blocks before the first test: a verdict takes five, and the order of variants is reversed in every second block."""
GROWTH = 4 / 3
"""Each test comes after this many times the blocks of the one before."""
SPENDING_POWER = 2
LEAST_SPENDING = 1e-5
"""A test at a lower level could only name differences that everyone sees, so it is left out: the first ones under a
high cap."""


def blocks_of_tests(most: int) -> tuple[int, ...]:
    """Return the numbers of blocks after which to test: even numbers from 6 on that spend anything, then `most`."""
    points = [min(FIRST_TEST, most)]
    while points[-1] < most:
        next_even = 2 * math.ceil(points[-1] * GROWTH / 2)
        points.append(min(next_even, most))
    return tuple(blocks for blocks in points if spent_significance(blocks / most) >= LEAST_SPENDING)


def spent_significance(share: float) -> float:
    """Return how much of 0.05 is spent after a share of the blocks (above 0, up to 1): 0.05 share^2."""
    return float(SIGNIFICANCE * share**SPENDING_POWER)


def significance_levels(most: int) -> tuple[float, ...]:
    """Return the level of each test; they sum to 0.05."""
    spent = [0.0, *(spent_significance(blocks / most) for blocks in blocks_of_tests(most))]
    return tuple(later - earlier for earlier, later in pairwise(spent))


def find_undecided(comparison: Sequence[Comparison]) -> list[Comparison]:
    """Return the throughputs that more blocks may decide: neither different nor the same within the band yet.

    A comparison that cannot be tested, whatever the blocks, is not waited for.
    """
    undecided = [row for row in comparison if is_primary(row.metric) and row.outcome == "undecided"]
    return [row for row in undecided if row.why is None or row.why.cause == "few_repeats"]
