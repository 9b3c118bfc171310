"""Student's t: the figures that evaluations were written with before scipy computed them, and its own properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.maths.student_t import quantile, two_sided_p

degrees = st.one_of(st.integers(1, 500), st.floats(0.6, 1e4))


@pytest.mark.parametrize(
    ("p", "df", "value"),
    [
        (0.975, 1, 12.706204736174683),
        (0.975, 2, 4.302652729749459),
        (0.975, 4, 2.7764451051977934),
        (0.8, 4, 0.9409645772351811),
        (0.975, 9, 2.2621571627982036),
        (0.975, 29, 2.0452296421327016),
        (0.995, 29, 2.756385903670603),
        (0.9999, 5, 9.677566300882809),
        (0.03, 7, -2.2408792888866955),
        (0.975, 199, 1.9719565442517428),
        (0.8, 999, 0.8419811822587506),
        (0.975, 12.345, 2.1720786542260297),
    ],
)
def test_quantiles_are_those_of_stored_evaluations(p: float, df: float, value: float):
    assert quantile(p, df) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("t", "df", "p"),
    [
        (0.0, 3, 1.0),
        (2.0, 5, 0.10193947882985835),
        (2.776, 4, 0.05002277831997642),
        (12.0, 2, 0.006872933677158457),
        (40.0, 9, 1.898299844933972e-11),
        (1.5, 0.7, 0.4403650970192401),
        (3.25, 17.25, 0.004641590904950926),
        (0.1, 500, 0.9203844075368944),
        (25.0, 300, 2.479642711947962e-75),
    ],
)
def test_p_values_are_those_of_stored_evaluations(t: float, df: float, p: float):
    assert two_sided_p(t, df) == pytest.approx(p, rel=1e-12)


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
