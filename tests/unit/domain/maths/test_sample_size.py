"""How many pairs a decision takes: the textbook's example, and the share of simulated experiments that then decide."""

from __future__ import annotations

import math
import random
from statistics import fmean, stdev

from backend.domain.maths.sample_size import MOST, pairs_needed
from backend.domain.maths.student_t import two_sided_p


def test_one_deviation_takes_ten_pairs_and_half_a_deviation_34_or_more() -> None:
    """G*Power's and every textbook's figures for a paired t-test at 0.05 with power 0.8 are 10 and 34.

    Above nine pairs the interval here has eight degrees of freedom, which costs some pairs more.
    """
    assert pairs_needed(1.0, 1.0, 2, 0.0) in {10, 11}
    assert pairs_needed(0.5, 1.0, 2, 0.0) in range(34, 42)


def test_no_difference_is_shown_by_its_band_and_what_never_ends_is_none() -> None:
    assert pairs_needed(0.0, 0.1, 5, 0.1) == pairs_needed(0.1, 0.1, 5, 0.0)
    assert pairs_needed(0.001, 1.0, 5, 0.0) is None
    assert pairs_needed(5.0, 0.01, 7, 0.1) == 7 <= MOST


def test_with_so_many_pairs_about_four_of_five_experiments_decide() -> None:
    chance, needed = random.Random(1), pairs_needed(0.2, 0.3, 5, 0.0)
    assert needed is not None
    decided = 0
    for _ in range(400):
        results = [chance.gauss(0.2, 0.3) for _ in range(needed)]
        decided += two_sided_p(fmean(results) / (stdev(results) / math.sqrt(needed)), needed - 1) < 0.05
    assert 0.72 <= decided / 400 <= 0.9
