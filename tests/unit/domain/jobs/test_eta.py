"""The range of what is left: what it must hold, when it says nothing, and how it reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.formatting import duration_range
from backend.domain.jobs.eta import (
    FEWEST_STEPS,
    EvaluationSize,
    ProgressReading,
    from_earlier,
    from_paces,
    from_rates,
    from_runs,
)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def readings(*steps: tuple[float, float]) -> list[ProgressReading]:
    """(seconds, progress) pairs."""
    return [ProgressReading(BEGIN + timedelta(seconds=at), progress) for at, progress in steps]


def after(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def test_an_even_pace_leaves_one_figure() -> None:
    load = from_rates(readings(*((10.0 * n, 0.1 * n) for n in range(6))), after(50))
    assert load is not None
    assert (load.low, load.high) == (pytest.approx(50), pytest.approx(50))


def test_the_spread_of_the_rates_is_the_range() -> None:
    """A tenth in 5 s at its fastest and in 20 s at its slowest; half is left."""
    load = from_rates(readings((0, 0.1), (5, 0.2), (25, 0.3), (35, 0.4), (45, 0.5)), after(45))
    assert load is not None
    assert (load.low, load.high) == (pytest.approx(25), pytest.approx(100))
    assert "4 rates" in load.basis


def test_time_that_passed_since_the_last_report_is_taken_off() -> None:
    load = from_rates(readings(*((10.0 * n, 0.1 * n) for n in range(6))), after(54))
    assert load is not None and load.low == pytest.approx(46)


def test_a_job_that_stands_still_widens_upwards() -> None:
    steps = readings(*((10.0 * n, 0.1 * n) for n in range(6)))
    soon, later = from_rates(steps, after(75)), from_rates(steps, after(350))
    assert soon is not None and later is not None
    assert later.high > soon.high > 100


@pytest.mark.parametrize("count", range(FEWEST_STEPS + 1))
def test_too_few_reports_say_nothing(count: int) -> None:
    assert from_rates(readings(*((n, 0.1 * n) for n in range(count))), after(9)) is None


def test_reports_that_do_not_move_are_no_rates() -> None:
    assert from_rates(readings(*((n, 0.3) for n in range(20))), after(30)) is None


@given(
    st.lists(st.tuples(st.floats(0.01, 1e4), st.floats(1e-6, 1)), min_size=FEWEST_STEPS + 1, max_size=200),
    st.floats(0, 1e5),
)
def test_any_history_gives_an_ordered_range(steps: list[tuple[float, float]], silent: float) -> None:
    whole = sum(share for _, share in steps) or 1.0
    at, done, result = 0.0, 0.0, []
    for seconds, share in steps:
        at, done = at + seconds, done + share
        result.append((at, min(1.0, done / whole)))
    answer = from_rates(readings(*result), after(at + silent))
    assert answer is None or 0 <= answer.low <= answer.high


def test_earlier_jobs_bound_what_is_left() -> None:
    earlier = from_earlier([60, 200, 100], 50)
    assert earlier is not None
    assert (earlier.low, earlier.high) == (10, 150)
    assert "3 earlier jobs" in earlier.basis
    assert from_earlier([60, 200], 201) is None
    assert from_earlier([], 0) is None
    slept = from_earlier([60, 50, 21_600, 55], 5)
    assert slept is not None and (slept.low, slept.high) == (45, 55) and "3 earlier jobs" in slept.basis


def test_runs_at_earlier_paces() -> None:
    runs = from_runs([(2.0, EvaluationSize(1, 8)), (5.0, EvaluationSize(1, 8))], EvaluationSize(10, 80))
    assert runs is not None and (runs.low, runs.high) == (20, 50)
    assert (
        from_runs([], EvaluationSize(10, 80)) is None
        and from_runs([(2.0, EvaluationSize(1, 8))], EvaluationSize(0, 0)) is None
    )
    longer = from_runs([(10.0, EvaluationSize(1, 8))], EvaluationSize(1, 80))
    assert longer is not None and (longer.low, longer.high) == (pytest.approx(28), 100), "up to 80 % is not requests"


def test_earlier_paces_scale_what_a_formula_reckons() -> None:
    paces = from_paces([0.5, 2.0], 100, 20)
    assert paces is not None and (paces.low, paces.high) == (30, 180) and "2 earlier jobs" in paces.basis
    assert from_paces([], 100) is None and from_paces([0.5], 100, 60) is None


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (120, 240, "between 2 and 4 min"),
        (90, 150, "between 1.5 and 2.5 min"),
        (20, 40, "between 20 and 40 s"),
        (180, 185, "about 3 min"),
        (0.1, 30, "up to 30 s"),
        (0, 0.2, "less than 1 s"),
        (5400, 10800, "between 1.5 and 3 h"),
        (600, 3000, "between 10 and 50 min"),
        (0, 0, "less than 1 s"),
    ],
)
def test_a_range_reads_in_one_unit(low: float, high: float, words: str) -> None:
    assert duration_range(low, high) == words
