"""The curve between measured points: figures of former reports, and its properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.maths import monotone

VALUES = st.floats(-1e3, 1e3).map(lambda value: round(value, 3))


@st.composite
def points(draw: st.DrawFn, least: int = 2) -> tuple[list[float], list[float]]:
    x = sorted(draw(st.lists(VALUES, min_size=least, max_size=9, unique=True)))
    return x, draw(st.lists(VALUES, min_size=len(x), max_size=len(x)))


@pytest.mark.parametrize(
    ("y", "at", "value"),
    [
        ([1.0, 4.0, 4.5, 9.0], 0.25, 2.0109154929577464),
        ([1.0, 4.0, 4.5, 9.0], 1.75, 4.226232394366197),
        ([1.0, 4.0, 4.5, 9.0], 2.9, 7.829502347417839),
        ([3.0, 1.0, 2.0, 2.0], 0.25, 2.25625),
        ([3.0, 1.0, 2.0, 2.0], 1.75, 1.5),
        ([3.0, 1.0, 2.0, 2.0], 2.9, 2.0),
        ([100.0, 80.0, 15.0, 14.0], 0.25, 96.6271404109589),
        ([100.0, 80.0, 15.0, 14.0], 1.75, 43.1137787816963),
        ([100.0, 80.0, 15.0, 14.0], 2.9, 14.050893617021275),
    ],
)
def test_the_curve_is_that_of_former_reports(y: list[float], at: float, value: float) -> None:
    assert monotone.monotone_curve([0.0, 1.0, 2.5, 3.0], y)(at) == pytest.approx(value, rel=1e-12)


@given(points(), st.floats(0, 1))
def test_it_stays_between_neighbours_and_is_silent_outside(
    given_points: tuple[list[float], list[float]], share: float
) -> None:
    x, y = given_points
    at = monotone.monotone_curve(x, y)
    for k in range(len(x) - 1):
        inside = x[k] + share * (x[k + 1] - x[k])
        position = at(min(inside, x[k + 1]))
        assert position is not None and min(y[k], y[k + 1]) <= position <= max(y[k], y[k + 1])
    assert at(x[0] - 1) is None and at(x[-1] + 1) is None
    assert [at(value) for value in x] == pytest.approx(y)


@given(points(), VALUES)
def test_the_last_place_within_a_limit(given_points: tuple[list[float], list[float]], limit: float) -> None:
    x, y = given_points
    last_at_most = monotone.find_last_at_most(x, y, limit)
    if last_at_most is None:
        assert min(y) > limit
        return
    value = monotone.monotone_curve(x, y)(last_at_most)
    assert value is not None and value <= limit + 1e-9
    assert all(height > limit for place, height in zip(x, y, strict=True) if place > last_at_most)


def test_one_point_is_its_own_curve_and_disorder_is_refused() -> None:
    assert monotone.monotone_curve([2.0], [5.0])(2.0) == 5.0 and monotone.monotone_curve([2.0], [5.0])(2.1) is None
    for x, y in (([], []), ([1.0, 1.0], [1.0, 2.0]), ([1.0, 2.0], [1.0])):
        with pytest.raises(ValueError, match="rise strictly"):
            monotone.monotone_curve(x, y)
