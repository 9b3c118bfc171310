"""The search ends at the highest level that holds, in few steps, and the knee is where the curve bends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.load.sweep import knee, next_level


def searched(limit: float, first: float, most: float, *, whole: bool) -> dict[float, bool]:
    """All levels a sweep tries where those up to `limit` hold."""
    tried: dict[float, bool] = {}
    while (level := next_level(tried, first, most, whole=whole)) is not None:
        assert level not in tried
        tried[level] = level <= limit
        assert len(tried) < 60
    return tried


@given(st.integers(1, 300), st.integers(1, 64), st.integers(64, 400))
def test_streams_are_found_to_one_or_a_twentieth(limit: int, first: int, most: int) -> None:
    tried = searched(limit, first, most, whole=True)
    assert all(level == int(level) and 1 <= level <= most for level in tried)
    best = max((level for level, reserved in tried.items() if reserved), default=0)
    assert best <= min(limit, most) and min(limit, most) - best <= max(1, 0.05 * best)


@given(st.floats(1, 500), st.floats(1, 20), st.floats(50, 600))
def test_rates_are_found_to_a_twentieth(limit: float, first: float, most: float) -> None:
    tried = searched(limit, first, most, whole=False)
    best = max((level for level, reserved in tried.items() if reserved), default=0)
    assert best <= min(limit, most)
    assert min(limit, most) <= best * 1.06


def test_a_level_that_never_holds_ends_the_search() -> None:
    assert list(searched(0, 8, 64, whole=True)) == [8, 4, 2, 1]
    assert min(searched(0, 8.0, 64, whole=False)) >= 8 / 64 / 2


def test_doubling_stops_at_the_most() -> None:
    assert list(searched(1000, 1, 6, whole=True)) == [1, 2, 4, 6]


@pytest.mark.parametrize("capacity", [4, 8, 16])
def test_the_knee_of_a_server_with_a_capacity_is_that(capacity: int) -> None:
    points = [(float(load), float(min(load, capacity) * 100)) for load in (1, 2, 4, 8, 16, 32, 64)]
    assert knee(points) == capacity


def test_a_straight_line_and_too_few_points_have_no_knee() -> None:
    assert knee([(1, 10), (2, 20), (4, 40), (8, 80)]) is None
    assert knee([(1, 10), (2, 20)]) is None
    assert knee([(1, 10), (2, 10), (3, 10)]) is None
