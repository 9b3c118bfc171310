"""The difference of two variants on the same samples: exact cases, its own promises, and how often it is wrong."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from backend.domain.maths.paired_scores import MatchedProportions, PairedMeans, UnpairedDifference, paired_difference


def test_scores_of_nought_and_one_are_matched_and_others_are_means() -> None:
    assert paired_difference([0, 1, 1, 0], [1, 1, 0, 0]) == MatchedProportions(won=1, lost=1, samples=4)
    assert paired_difference([0.5, 1], [1, 1]) == PairedMeans((0.5, 0))
    with pytest.raises(ValueError, match="no samples"):
        paired_difference([], [])
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        paired_difference([1.0], [])


@given(st.integers(0, 300), st.integers(0, 300), st.integers(0, 500))
def test_the_exact_test_is_scipys(won: int, lost: int, same: int) -> None:
    proportions = MatchedProportions(won, lost, max(1, won + lost + same))
    exact = stats.binomtest(won, won + lost, 0.5).pvalue if won + lost else 1.0
    assert proportions.p_value >= exact * (1 - 1e-9)
    assert proportions.p_value <= 1 + 1e-12
    assert MatchedProportions(lost, won, proportions.samples).p_value == pytest.approx(proportions.p_value)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 200), st.sampled_from([0.1, 0.05, 0.01]))
def test_the_interval_holds_nought_exactly_where_the_test_does_not_reject(
    won: int, lost: int, same: int, alpha: float
) -> None:
    proportions = MatchedProportions(won, lost, max(1, won + lost + same))
    low, high = proportions.interval(alpha)
    assert -1 <= low <= high <= 1
    assert (low <= 0 <= high) == (proportions.p_value > alpha)


def test_an_interval_by_hand() -> None:
    """Agresti and Min's, with one sample more in each pair of cells: 12 won, 2 lost of 50."""
    proportions = MatchedProportions(12, 2, 50)
    middle = 10 / 52
    error = ((15 / 52 - middle**2) / 52) ** 0.5
    assert proportions.value == 0.2
    assert proportions.interval(0.05) == pytest.approx((middle - 1.959964 * error, middle + 1.959964 * error))


def test_where_no_sample_differs_the_interval_still_has_a_width() -> None:
    low, high = MatchedProportions(0, 0, 40).interval(0.05)
    assert -0.06 < low < -0.02 and high == pytest.approx(-low) and MatchedProportions(0, 0, 40).p_value == 1


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=40))
def test_the_means_are_a_paired_t_test(differences: list[float]) -> None:
    means = PairedMeans(tuple(differences))
    if max(differences) - min(differences) < 1e-3:
        return
    expected = stats.ttest_1samp(differences, 0)
    assert means.p_value == pytest.approx(expected.pvalue, abs=1e-9)
    assert means.interval(0.05) == pytest.approx(tuple(expected.confidence_interval(0.95)), abs=1e-6)


def test_without_spread_there_is_no_test() -> None:
    assert PairedMeans((0.25, 0.25, 0.25)).p_value is None and PairedMeans((0.25,)).interval(0.05) is None
    assert UnpairedDifference(0.1, 0.0).p_value is None and UnpairedDifference(0.1, 0.0).interval(0.05) is None


def test_two_errors_apart_make_a_z_interval() -> None:
    assert UnpairedDifference(1.0, 0.5).interval(0.05) == pytest.approx((1 - 1.959964 * 0.5, 1 + 1.959964 * 0.5))
    assert UnpairedDifference(1.0, 0.5).p_value == pytest.approx(2 * stats.norm.sf(2))


def simulated(rng: random.Random, *, samples: int, change: float, better: float) -> MatchedProportions:
    """`change` of the samples differ, `better` of those for the variant."""
    differing = sum(rng.random() < change for _ in range(samples))
    won = sum(rng.random() < better for _ in range(differing))
    return MatchedProportions(won, differing - won, samples)


@pytest.mark.parametrize("samples", [20, 100, 400])
@pytest.mark.parametrize("change", [0.05, 0.3])
def test_the_same_variant_twice_is_called_different_at_most_as_often_as_promised(samples: int, change: float) -> None:
    rng = random.Random(f"{samples} {change}")
    wrong = fmean(simulated(rng, samples=samples, change=change, better=0.5).p_value <= 0.05 for _ in range(2000))
    assert wrong <= 0.05


@pytest.mark.parametrize("samples", [50, 200])
def test_the_interval_holds_the_true_difference(samples: int) -> None:
    rng, change, better = random.Random(samples), 0.3, 0.7
    truth = change * (2 * better - 1)
    intervals = [simulated(rng, samples=samples, change=change, better=better).interval(0.05) for _ in range(2000)]
    assert fmean(low <= truth <= high for low, high in intervals) >= 0.94


def test_more_samples_make_the_interval_narrower() -> None:
    widths = [
        high - low for low, high in (MatchedProportions(n // 10, n // 20, n).interval(0.05) for n in (40, 400, 4000))
    ]
    assert all(after < before for before, after in pairwise(widths))
