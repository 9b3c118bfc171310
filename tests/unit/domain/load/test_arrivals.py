"""When requests are due: exact for a constant rate, Poisson where asked, and the area under a ramp."""

from __future__ import annotations

from itertools import islice, pairwise
from statistics import fmean, variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.load.arrivals import Process, arrival_offsets

RATES = st.floats(0.5, 500)
SECONDS = st.floats(0.1, 20)


def test_a_constant_rate_is_evenly_spaced_from_the_start() -> None:
    assert list(islice(arrival_offsets(4.0), 5)) == [0, 0.25, 0.5, 0.75, 1]
    assert list(arrival_offsets(4.0, seconds=1.0)) == [0, 0.25, 0.5, 0.75]


@given(st.floats(0, 100), st.floats(0.5, 100), SECONDS, st.sampled_from(["constant", "poisson"]))
def test_a_ramp_stays_within_its_time_and_ascends(
    rate: float, rate_to: float, seconds: float, process: Process
) -> None:
    times = list(arrival_offsets(rate, process, rate_to=rate_to, seconds=seconds))
    assert times == sorted(times)
    assert all(0 <= time < seconds for time in times)


@given(st.floats(0, 100), st.floats(0.5, 100), SECONDS)
def test_as_many_are_due_in_a_ramp_as_its_mean_rate_says(rate: float, rate_to: float, seconds: float) -> None:
    expected = (rate + rate_to) / 2 * seconds
    assert abs(len(list(arrival_offsets(rate, rate_to=rate_to, seconds=seconds))) - expected) <= 1 + 1e-6 * expected


def test_a_falling_ramp_ends_where_the_rate_does() -> None:
    times = list(arrival_offsets(10.0, rate_to=0.0, seconds=10.0))
    assert len(times) == pytest.approx(50, abs=1)
    assert times[1] - times[0] < times[-1] - times[-2]


@given(RATES, st.integers(0, 2**31))
def test_the_same_seed_gives_the_same_moments(rate: float, seed: int) -> None:
    assert list(islice(arrival_offsets(rate, "poisson", seed=seed), 20)) == list(
        islice(arrival_offsets(rate, "poisson", seed=seed), 20)
    )


def test_gaps_of_a_poisson_process_are_exponential() -> None:
    """Mean 1 / rate and a standard deviation as large: 20,000 gaps are within 3% of both."""
    gaps = [b - a for a, b in pairwise(islice(arrival_offsets(50.0, "poisson", seed=1), 20_001))]
    assert fmean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert variance(gaps) ** 0.5 == pytest.approx(1 / 50, rel=0.03)
