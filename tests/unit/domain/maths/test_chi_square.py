"""The chi-square distribution, central and noncentral, against published figures and those of stored evaluations."""

from __future__ import annotations

import pytest

from backend.domain.maths import chi_square


@pytest.mark.parametrize(
    ("value", "df", "above"),
    [
        (3.841459, 1, 0.05),
        (18.307038, 10, 0.05),
        (124.342113, 100, 0.05),
        (6.634897, 1, 0.01),
        (0.0, 3, 1.0),
        (2.0, 2, 0.367879),
    ],
)
def test_tails_are_those_of_the_tables(value: float, df: float, above: float) -> None:
    assert chi_square.upper_tail(value, df) == pytest.approx(above, rel=1e-5)
    if 0 < above < 1:
        assert chi_square.critical_value(above, df) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(("df", "needed"), [(1, 7.849), (2, 9.635), (5, 12.828), (10, 16.241), (20, 20.961)])
def test_what_is_found_with_80_percent_power_is_that_of_the_tables(df: int, needed: float) -> None:
    """Cohen, Statistical Power Analysis, 2nd edition, table 9.4.2 and later ones."""
    assert chi_square.detectable_noncentrality(df, 0.05) == pytest.approx(needed, rel=2e-3)
    assert chi_square.power(needed, df, 0.05) == pytest.approx(0.8, abs=1e-3)


def test_without_an_effect_the_power_is_the_level() -> None:
    assert chi_square.power(0.0, 7, 0.05) == pytest.approx(0.05, rel=1e-6)
    with pytest.raises(ValueError, match="df > 0"):
        chi_square.upper_tail(1.0, 0)


@pytest.mark.parametrize(
    ("value", "df", "above"),
    [
        (3.841459, 1, 0.04999999465319516),
        (0.5, 1, 0.4795001221869536),
        (18.307038, 10, 0.05000000082473228),
        (90.0, 20, 7.412919565393068e-11),
        (250.0, 300, 0.9838029502076436),
        (700.0, 300, 5.267054393745421e-34),
    ],
)
def test_tails_are_those_of_stored_evaluations(value: float, df: float, above: float) -> None:
    assert chi_square.upper_tail(value, df) == pytest.approx(above, rel=1e-12)


@pytest.mark.parametrize(
    ("df", "alpha", "needed"),
    [
        (1, 0.05, 7.8515625),
        (2, 0.05, 9.640625),
        (5, 0.0125, 17.203125),
        (20, 0.05, 20.96875),
        (60, 0.003125, 49.5),
        (200, 0.00125, 89.3125),
    ],
)
def test_what_is_detected_is_that_of_stored_evaluations(df: float, alpha: float, needed: float) -> None:
    assert chi_square.detectable_noncentrality(df, alpha) == needed
