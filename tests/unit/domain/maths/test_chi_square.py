"""The chi-square distribution, central and noncentral, against published figures."""

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
