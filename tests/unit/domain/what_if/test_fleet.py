"""Machines for a rate of requests: the tutorial's example, properties, and what variants cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend.domain.limits.slo import Slo
from backend.domain.what_if.costs import HOURS_A_MONTH, WhatIf
from backend.domain.what_if.fleet import count_machines, size_fleets
from tests.helpers.crossing_evaluation import crossing


def test_three_hundred_requests_at_twenty_a_machine_take_fifteen() -> None:
    assert count_machines(300, 20, 0.0) == 15
    assert count_machines(300, 20, 0.2) == 19
    assert count_machines(0.001, 20, 0.2) == 1


@given(st.floats(0.001, 1e5), st.floats(0.01, 1e3), st.floats(0.0, 0.9))
def test_no_machine_is_fuller_than_allowed_and_none_is_spare(rate: float, each: float, headroom: float) -> None:
    machines = count_machines(rate, each, headroom)
    assert rate <= machines * each * (1 - headroom) * (1 + 1e-6)
    assert machines == 1 or rate > (machines - 1) * each * (1 - headroom) * (1 - 1e-6)


def test_the_cheapest_fleet_is_first_and_who_misses_the_limits_is_named() -> None:
    document = crossing()
    fleets, unfit = size_fleets(document, WhatIf(per_hour=2.0), rate=50.0)
    assert unfit == [] and [fleet.per_hour for fleet in fleets] == sorted(fleet.per_hour or 0 for fleet in fleets)
    first = fleets[0]
    assert first.requests_per_s == max(fleet.requests_per_s for fleet in fleets)
    assert first.machines >= first.machines_without_headroom
    assert first.per_hour == 2.0 * first.machines and first.per_month == first.per_hour * HOURS_A_MONTH
    limited, left_out = size_fleets(document, WhatIf(limits=Slo(ttft_ms=0.1)), rate=50.0)
    assert limited == [] and left_out == ["original", "low", "high", "slow"]
