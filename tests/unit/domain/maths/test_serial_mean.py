"""The mean of measurements in a row: the t-test for few, and an interval that holds where neighbours are alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from backend.domain.maths.serial_mean import LEAST_TERMS, SerialMean, terms

RUNS = 4000
THREE_SIGMA = 3 * math.sqrt(0.05 * 0.95 / RUNS)
VALUES = st.lists(st.floats(-10, 10), min_size=2, max_size=9)


@given(VALUES.filter(lambda values: np.std(values) > 1e-6))
def test_up_to_nine_values_it_is_students_t_test(values: list[float]) -> None:
    mean, reference = SerialMean(tuple(values)), stats.ttest_1samp(values, 0.0)
    assert mean.spread == pytest.approx(np.std(values, ddof=1))
    assert mean.p_value == pytest.approx(reference.pvalue, rel=1e-6, abs=1e-9)
    assert mean.interval(0.05) == pytest.approx(tuple(reference.confidence_interval(0.95)), rel=1e-6, abs=1e-9)


def test_what_does_not_vary_has_no_interval() -> None:
    for values in ((), (1.0,), (1.0, 1.0, 1.0)):
        assert SerialMean(values).p_value is None and SerialMean(values).interval(0.05) is None


def test_the_number_of_cosines_follows_the_published_rule_above_its_least() -> None:
    assert [terms(count) for count in (2, 9, 10, 60, 120, 1000)] == [1, 8, LEAST_TERMS, LEAST_TERMS, 10, 40]


def _share_missed(noise: np.ndarray) -> float:
    """Return the share of series, one a row, whose 95% interval leaves the true mean of 0 out."""
    intervals = [SerialMean(tuple(row)).interval(0.05) for row in noise.tolist()]
    return sum(interval is not None and not interval[0] <= 0 <= interval[1] for interval in intervals) / len(noise)


@pytest.mark.parametrize("count", [12, 48])
def test_independent_values_are_covered_as_promised(count: int) -> None:
    noise = np.random.default_rng(count).standard_normal((RUNS, count))
    assert 0.05 - THREE_SIGMA <= _share_missed(noise) <= 0.05 + THREE_SIGMA


def test_a_machine_that_is_slow_for_a_while_does_not_make_the_interval_too_narrow() -> None:
    """An autoregressive series: the usual standard error leaves the truth out four times as often as it says."""
    rng, count, memory = np.random.default_rng(1), 96, 0.5
    noise = rng.standard_normal((RUNS, count))
    noise[:, 0] /= math.sqrt(1 - memory**2)
    for place in range(1, count):
        noise[:, place] += memory * noise[:, place - 1]
    usual = np.abs(noise.mean(1)) > stats.t.ppf(0.975, count - 1) * noise.std(1, ddof=1) / math.sqrt(count)
    assert usual.mean() > 0.2 and _share_missed(noise) <= 0.075


def test_a_steady_drift_widens_the_interval_rather_than_narrowing_it() -> None:
    noise = np.random.default_rng(2).standard_normal((RUNS // 4, 24)) + np.linspace(-1, 1, 24)
    assert _share_missed(noise) <= 0.05
