"""Times of traces: every form gives the same seconds, and what may be two units is asked for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import InvalidWorkload
from backend.domain.workload.row_report import UnusableRow
from backend.domain.workload.trace_times import read_times

START = datetime(2023, 11, 16, 18, 15, 46, tzinfo=UTC)
OFFSETS = st.lists(st.integers(0, 10**9), min_size=1, max_size=8)
"""Microseconds."""
FORMS = {
    "seconds since 1970": lambda at: (START + at).timestamp(),
    "milliseconds since 1970": lambda at: round((START + at).timestamp() * 1000),
    "microseconds since 1970": lambda at: round((START + at).timestamp() * 10**6),
    "nanoseconds since 1970": lambda at: round((START + at).timestamp() * 10**6) * 1000,
    "with Z": lambda at: (START + at).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    "with seven digits": lambda at: (START + at).strftime("%Y-%m-%d %H:%M:%S.%f0"),
    "of another zone": lambda at: (START + at).astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat(),
    "as a moment": lambda at: START + at,
    "with slashes": lambda at: (START + at).strftime("%Y/%m/%d %H:%M:%S.%f"),
}
UNITS = {"milliseconds since 1970": 1e-3, "seconds since 1970": 1e-5}


@given(OFFSETS, st.sampled_from(sorted(FORMS)))
def test_every_form_gives_the_same_seconds(offsets: list[int], form: str) -> None:
    times = read_times("w", [FORMS[form](timedelta(microseconds=offset)) for offset in offsets])
    expected = [(offset - min(offsets)) / 1e6 for offset in offsets]
    assert times.seconds == pytest.approx(expected, abs=UNITS.get(form, 1e-9))


@pytest.mark.parametrize(
    ("values", "unit", "seconds"),
    [
        ([0.0, 0.25, 0.5], "seconds", [0.0, 0.25, 0.5]),
        (["0.5", "40.5", "80.5"], "seconds", [0.0, 40.0, 80.0]),
        ([5, 6, 6, 7], "seconds", [0.0, 1.0, 1.0, 2.0]),
        ([3], "seconds", [0.0]),
        ([None, ""], None, [None, None]),
        (["2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46.6805901"], "moments", [0.0, 1e-7]),
        (["2026-01-31", "2026-02-01T00:00"], "moments", [0.0, 86400.0]),
        (["2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"], "moments", [0.0, 0.0]),
    ],
)
def test_a_rule_says_the_unit(values: list[Any], unit: str | None, seconds: list[float | None]) -> None:
    assert read_times("w", values) == (seconds, unit)


def test_a_unit_that_was_named_goes_before_all_rules() -> None:
    assert read_times("w", [0, 250], "ms", "s").seconds == [0.0, 0.25]
    assert read_times("w", [0, 250], "auto", "s").seconds == [0.0, 250.0]
    assert read_times("w", [0.5, 250.5], "us").seconds == [0.0, 0.00025]


def test_whole_numbers_that_are_seldom_as_seconds_are_asked_for() -> None:
    with pytest.raises(
        InvalidWorkload, match=r"in seconds \(3 requests over 20 s\) or in milliseconds \(over 0.02 s\)"
    ):
        read_times("w", [0, 10, 20])
    assert read_times("w", [0, 10, 20], needed=False) == ([None, None, None], "unclear")


@pytest.mark.parametrize("value", [True, "soon", [1], "31.01.2026", float("inf"), "2026-13-01", 1e300])
def test_what_is_no_time_is_a_row_that_cannot_be_used(value: Any) -> None:
    unread = read_times("w", [0.5, 1.5, value]).seconds[2]
    assert isinstance(unread, UnusableRow) and "time" in unread.reason


def test_times_of_two_forms_cannot_be_placed_among_each_other() -> None:
    mixed = read_times("w", ["2026-01-31T12:00:00Z", "2026-01-31T12:00:01Z", "2026-01-31T12:00:02", 5.5]).seconds
    assert mixed[:2] == [0.0, 1.0]
    assert [str(each) for each in mixed[2:]] == [
        "its time is a moment without a zone, that of other rows a moment with a zone",
        "its time is a number, that of other rows a moment with a zone",
    ]


@given(st.lists(st.decimals(0, 10**6, places=7), min_size=2, max_size=5))
def test_no_digit_of_a_number_is_lost(values: list[Decimal]) -> None:
    seconds = read_times("w", [str(value) for value in values], "s").seconds
    assert seconds == [round(float(value - min(values)), 9) for value in values]
