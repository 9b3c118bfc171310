"""Requests for the model `auto` go to the variant of the load, and none is refused while one variant is served."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from backend.domain.limits.slo import Slo
from backend.domain.what_if.portfolio import make_portfolio
from backend.gateway.portfolio_route import PortfolioRoute
from backend.gateway.refusals import Refusal
from backend.gateway.routes import RouteTable, Upstream
from tests.helpers.crossing_evaluation import crossing


@pytest.fixture
def route() -> PortfolioRoute:
    """`low` up to 2 streams, `high` from 4 on."""
    portfolio = make_portfolio(crossing(), Slo())
    assert portfolio is not None
    return PortfolioRoute(portfolio, {"low": "a-low", "high": "a-high"})


def serving(*names: str) -> RouteTable:
    return RouteTable(
        Upstream(name=name, source=f"a-{name}", served_name=name, base="http://127.0.0.1:9") for name in names
    )


def test_the_load_decides_and_between_the_sides_the_last_one_goes_on(route: PortfolioRoute) -> None:
    routes, chosen = serving("low", "high"), list[str]()
    # 1. Requests come, and none ends.
    with ExitStack() as requests:
        for _ in range(5):
            chosen.append(route.require(routes).name)
            requests.enter_context(route.count())
        assert chosen == ["low", "low", "low", "high", "high"] and route.in_flight == 5
    # 2. They end one by one: `high` goes on at 3 in flight, and `low` is back at 2.
    assert route.in_flight == 0
    with route.count(), route.count():
        assert route.require(routes).name == "high"
    with route.count():
        assert route.require(routes).name == "low"


def test_the_nearest_variant_answers_for_one_that_is_not_served(route: PortfolioRoute) -> None:
    assert route.require(serving("high")).name == "high"
    by_id = RouteTable([Upstream(name="other", source="a-low", served_name="x", base="http://127.0.0.1:9")])
    assert route.require(by_id).served_name == "x", "a server may be known by the id alone"
    with pytest.raises(Refusal, match="start them with `whetstone serve a-low a-high`"):
        route.require(serving("another"))
