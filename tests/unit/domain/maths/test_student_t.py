"""Student's t against scipy's, which only the tests may use."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from backend.domain.maths.student_t import incomplete_beta, quantile, two_sided_p

degrees = st.one_of(st.integers(1, 500), st.floats(0.6, 1e4))


@given(st.floats(-200, 200), degrees)
def test_the_p_value_is_scipys(t: float, df: float):
    assert two_sided_p(t, df) == pytest.approx(2 * stats.t.sf(abs(t), df), rel=1e-9, abs=1e-300)


@given(st.floats(1e-5, 1 - 1e-5), degrees)
def test_the_quantile_is_scipys(p: float, df: float):
    assert quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-8, abs=1e-9)


@given(st.floats(0.51, 0.9999), degrees)
def test_the_quantile_and_the_p_value_are_inverses(p: float, df: float):
    assert two_sided_p(quantile(p, df), df) == pytest.approx(2 * (1 - p), rel=1e-9)


def test_one_degree_of_freedom_is_the_cauchy_distribution():
    assert quantile(0.975, 1) == pytest.approx(math.tan(math.pi * 0.475), rel=1e-12)


def test_the_p_value_is_two_sided():
    assert two_sided_p(2.0, 5) == two_sided_p(-2.0, 5)


def test_an_infinite_t_has_no_probability_left():
    assert two_sided_p(math.inf, 3) == 0.0


@pytest.mark.parametrize(("p", "df"), [(0, 3), (1, 3), (0.5, 0), (0.5, -1), (math.nan, 3)])
def test_a_quantile_outside_the_domain_is_refused(p: float, df: float):
    with pytest.raises(ValueError, match="quantile needs"):
        quantile(p, df)


def test_a_p_value_of_no_number_is_refused():
    with pytest.raises(ValueError, match="two_sided_p needs"):
        two_sided_p(math.nan, 3)


def test_the_incomplete_beta_function_ends_at_0_and_1():
    assert (incomplete_beta(2, 3, 0), incomplete_beta(2, 3, 1)) == (0.0, 1.0)
