"""Cost of serving under limits, against an API and a month: by hand and by properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.evaluation.prices import Pricing
from backend.domain.limits.slo import Slo
from backend.domain.load.load import Load
from backend.domain.what_if import costs
from backend.domain.what_if.costs import ApiPrice, OperatingPoint
from backend.present.words.costs import load_words
from tests import simulated

RESULT = simulated.evaluation().variants[0]
HIGHEST = RESULT.levels[-1]
ONE = OperatingPoint(
    load=Load("closed", 8),
    output_tokens_per_s=1000,
    input_tokens_per_s=3000,
    requests_per_s=10,
    interpolated=False,
    at_the_end=True,
)


def test_without_limits_it_is_the_highest_measured_level_and_says_that_more_may_fit() -> None:
    operating_point = costs.operating_point(RESULT, Slo())
    assert (
        operating_point is not None
        and operating_point.load == HIGHEST.load
        and operating_point.at_the_end
        and not operating_point.interpolated
    )
    assert operating_point.output_tokens_per_s == HIGHEST.output_tokens_per_s


def test_a_limit_at_a_measured_level_gives_that_level() -> None:
    level = RESULT.levels[1]
    assert level.ttft_ms is not None
    operating_point = costs.operating_point(RESULT, Slo(ttft_ms=level.ttft_ms.p95))
    assert operating_point is not None and operating_point.load == level.load
    assert (
        operating_point.output_tokens_per_s == pytest.approx(level.output_tokens_per_s)
        and not operating_point.at_the_end
    )


@given(st.floats(0, 1))
def test_between_two_levels_the_rates_lie_between_theirs(share: float) -> None:
    low, high = RESULT.levels[0], RESULT.levels[1]
    assert low.ttft_ms and high.ttft_ms
    operating_point = costs.operating_point(
        RESULT, Slo(ttft_ms=low.ttft_ms.p95 + share * (high.ttft_ms.p95 - low.ttft_ms.p95))
    )
    assert operating_point is not None
    assert low.load.value <= operating_point.load.value <= high.load.value + 1e-9
    ends = sorted((low.output_tokens_per_s, high.output_tokens_per_s))
    assert ends[0] - 1e-9 <= operating_point.output_tokens_per_s <= ends[1] + 1e-9


def test_a_limit_below_every_measured_level_is_never_extrapolated() -> None:
    assert costs.operating_point(RESULT, Slo(ttft_ms=0.001)) is None


def test_levels_that_the_client_held_back_do_not_count() -> None:
    limited = RESULT.model_copy(
        update={"levels": [level.model_copy(update={"client_limited": True}) for level in RESULT.levels]}
    )
    assert costs.operating_point(limited, Slo()) is None


def test_a_latency_that_was_not_measured_keeps_no_limit() -> None:
    blind = RESULT.model_copy(
        update={"levels": [level.model_copy(update={"tpot_ms": None}) for level in RESULT.levels]}
    )
    assert costs.operating_point(blind, Slo(tpot_ms=1e9)) is None and costs.operating_point(blind, Slo()) is not None


def test_break_even_by_hand() -> None:
    break_even = costs.break_even(Pricing(per_hour=9.0), ONE, ApiPrice(per_million_input=0.5, per_million_output=1.5))
    # 3,000 x 3,600 tokens in at 0.5 and 1,000 x 3,600 out at 1.5 a million: 5.4 + 5.4.
    assert break_even.api_per_hour == pytest.approx(10.8)
    assert break_even.share == pytest.approx(9 / 10.8) and break_even.requests_per_hour == pytest.approx(
        36_000 * 9 / 10.8
    )


def test_a_machine_dearer_than_the_api_at_full_load_never_breaks_even() -> None:
    break_even = costs.break_even(Pricing(per_hour=99.0), ONE, ApiPrice(per_million_input=0.5, per_million_output=1.5))
    assert break_even.share == pytest.approx(99 / 10.8) and break_even.requests_per_hour is None
    free = costs.break_even(Pricing(per_hour=99.0), ONE, ApiPrice(per_million_input=0, per_million_output=0))
    assert free.share is None and free.requests_per_hour is None


def test_a_month_by_hand() -> None:
    # 730 h x 3,600 s x 10 requests/s = 26.28 M on one machine at full load.
    monthly_cost = costs.monthly_cost(Pricing(per_hour=2.0, discount=0.5), ONE, 26_280_000)
    assert monthly_cost is not None and monthly_cost.machines == 1 and monthly_cost.cost == pytest.approx(730.0)
    assert monthly_cost.utilisation == pytest.approx(1.0) and monthly_cost.cost_per_request == pytest.approx(
        730 / 26_280_000
    )
    peaked = costs.monthly_cost(Pricing(per_hour=2.0, discount=0.5), ONE, 26_280_000, peak=2.5)
    assert peaked is not None and peaked.machines == 3 and peaked.utilisation == pytest.approx(1 / 3)


@given(st.floats(1, 1e12), st.floats(1, 20), st.floats(0.001, 1e4))
def test_the_machines_serve_the_peak_and_one_fewer_would_not(requests: float, peak: float, rate: float) -> None:
    at = ONE.model_copy(update={"requests_per_s": rate})
    monthly_cost = costs.monthly_cost(Pricing(per_hour=1.0), at, requests, peak)
    assert monthly_cost is not None
    busiest = requests * peak / (730 * 3600)
    assert monthly_cost.machines * rate >= busiest * (1 - 1e-9)
    assert monthly_cost.machines == 1 or (monthly_cost.machines - 1) * rate < busiest * (1 + 1e-9)
    assert math.isclose(monthly_cost.cost, monthly_cost.machines * 730)


def test_nothing_answered_costs_nothing_that_can_be_told() -> None:
    assert costs.monthly_cost(Pricing(per_hour=1.0), ONE.model_copy(update={"requests_per_s": 0.0}), 1000) is None


def test_levels_by_the_clock_are_read_by_rate_even_at_one_concurrency() -> None:
    slow = [simulated.level(1, speed, load=Load("rate", rate)) for rate, speed in ((2.0, 1.0), (8.0, 0.9), (32.0, 0.5))]
    at = costs.operating_point(simulated.result("clocked", slow), Slo())
    assert at is not None
    assert (at.load, at.interpolated, at.at_the_end) == (Load("rate", 32), False, True)
    assert load_words(at) == "32 requests/s, measured; more may fit"
    tpot = slow[1].tpot_ms
    assert tpot is not None
    between = costs.operating_point(simulated.result("clocked", slow), Slo(tpot_ms=tpot.p95 * 1.2))
    assert between is not None and 8 < between.load.value < 32
