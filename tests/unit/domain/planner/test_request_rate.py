"""A rate of requests: what it keeps in flight by Little's law, how many instances carry it, and what a token costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.catalog.bundled import instances, published
from backend.domain.planner import estimate, request_rate
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe import recipe
from backend.domain.recipe.recipe import Recipe
from backend.service.machines import targets
from backend.service.plans import auto_target

LLAMA = "meta-textgeneration-llama-3-8b"
AWQ = recipe.read({"steps": [{"quantize": {"method": "awq"}}]})
NGRAM = recipe.read({"steps": [{"speculate": {"method": "ngram"}}]})
GAINS = st.lists(st.floats(0, 100), min_size=1, max_size=40).filter(lambda gains: gains[0] > 0.001)
RATES = st.floats(0.001, 5000)


def rising(gains: list[float]) -> Callable[[int], float]:
    """Return tokens/s that do not fall: each concurrent request adds its gain."""
    sums = [0.0, *accumulate(gains)]
    return lambda concurrency: sums[concurrency]


def estimated(
    load: ExpectedLoad, chosen: Recipe | None = None, target: str = "ml.g5.12xlarge", degree: int = 1, replicas: int = 4
) -> Estimate:
    where, model = instances.load().find(target), published.find(LLAMA)
    assert where is not None and model is not None
    context = auto_target.make_context(where, targets.rule_facts(where, model, None), load)
    return estimate.estimate(model, chosen or Recipe(), context, degree, replicas)


@given(GAINS, st.floats(0.001, 1e5))
def test_the_fewest_requests_and_instances_that_carry_a_rate_are_taken(gains: list[float], tokens_per_s: float) -> None:
    carried, most = rising(gains), len(gains)
    in_flight = request_rate.find_in_flight(tokens_per_s, carried, most)
    assert in_flight is not None and in_flight.carried_tokens_per_s == carried(most)
    share = tokens_per_s / in_flight.instances
    carrying = [number for number in range(1, most + 1) if carried(number) >= share * (1 - 1e-9)]
    assert in_flight.concurrency in {carrying[0], carrying[0] + 1}
    assert carried(in_flight.concurrency) >= share * (1 - 1e-9)
    assert in_flight.concurrency == 1 or carried(in_flight.concurrency - 1) < share
    assert (in_flight.instances - 1) * carried(most) < tokens_per_s


def test_nothing_is_in_flight_where_nothing_is_carried() -> None:
    assert request_rate.find_in_flight(1.0, lambda concurrency: 0.0, 8) is None


@pytest.mark.parametrize("chosen", [Recipe(), AWQ, NGRAM])
@given(rate=RATES, tokens_in=st.integers(1, 4000), tokens_out=st.integers(1, 2000))
def test_an_estimate_carries_its_rate_at_the_worst_end(
    chosen: Recipe, rate: float, tokens_in: int, tokens_out: int
) -> None:
    load = ExpectedLoad(input_tokens=tokens_in, output_tokens=tokens_out, rate=rate)
    at_rate = estimated(load, chosen)
    assert at_rate.output_tokens_per_s is not None and at_rate.price_per_hour is not None
    assert at_rate.load.rate == rate and at_rate.carried_requests_per_s is not None
    needed = rate * tokens_out
    # 1. All instances together carry what is asked, and one less would not.
    assert at_rate.instances * at_rate.output_tokens_per_s[0] >= needed * (1 - 1e-9)
    assert (at_rate.instances - 1) * at_rate.carried_requests_per_s < rate
    # 2. It is the estimate for that many requests: Little's law holds for the seconds of a request there.
    number = at_rate.load.concurrency
    same = estimated(load.model_copy(update={"rate": None, "concurrency": number}), chosen)
    assert (same.ttft_ms, same.tpot_ms, same.output_tokens_per_s) == (
        at_rate.ttft_ms,
        at_rate.tpot_ms,
        at_rate.output_tokens_per_s,
    )
    seconds = number * tokens_out / at_rate.output_tokens_per_s[0]
    assert number >= rate / at_rate.instances * seconds * (1 - 1e-9)
    # 3. One request less does not carry it.
    if number > 1:
        fewer = estimated(load.model_copy(update={"rate": None, "concurrency": number - 1}), chosen)
        assert fewer.output_tokens_per_s is not None
        assert fewer.output_tokens_per_s[0] < needed / at_rate.instances
    # 4. A token costs the hour of all instances over the tokens that are asked for.
    price = at_rate.instances * at_rate.price_per_hour / (needed * 3600 / 1e6)
    assert at_rate.price_per_million_output == pytest.approx((price, price))


@given(RATES, st.floats(1, 20))
def test_a_higher_rate_needs_no_fewer_requests_in_flight_over_all_instances(rate: float, factor: float) -> None:
    low, high = (estimated(ExpectedLoad(rate=each)) for each in (rate, rate * factor))
    assert low.instances <= high.instances
    if low.instances == high.instances:
        assert low.load.concurrency <= high.load.concurrency


def test_where_the_speed_is_unknown_a_rate_has_no_price() -> None:
    where, model = instances.load().find("ml.g5.12xlarge"), published.find(LLAMA)
    assert where is not None and model is not None
    slow = where._replace(device=where.device._replace(flops=None))
    context = auto_target.make_context(slow, targets.rule_facts(slow, model, None), ExpectedLoad(rate=2.0))
    unknown = estimate.estimate(model, Recipe(), context, 1, 4)
    assert unknown.price_per_million_output is None and unknown.carried_requests_per_s is None
    assert unknown.instances == 1 and "in flight" not in unknown.load_text


def test_loads_beside_one_another_keep_the_rate_apart() -> None:
    load = ExpectedLoad(concurrency=4, rate=2.5)
    assert [each.demand for each in load.list_with((16, 1))] == ["1 stream", "16 streams", "2.5 requests/s"]
    assert [each.demand for each in ExpectedLoad(concurrency=4).list_with((16, 4))] == ["4 streams", "16 streams"]
    assert load.is_asked_by(load.model_copy(update={"concurrency": 9}))
    assert not load.is_asked_by(ExpectedLoad(concurrency=4))
    assert math.isclose(load.rate or 0, 2.5)
