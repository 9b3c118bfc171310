"""The traffic of a server is read from readings of its counters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from backend.domain.jobs.jobs import Event
from backend.service.serving.traffic import SLOT_S, WINDOW_S, sum_up

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)


def reading(seconds_ago: float, **generated: float) -> Event:
    served = {
        source: {"generation_tokens": tokens, "prompt_tokens": 10 * tokens} for source, tokens in generated.items()
    }
    return Event(kind="progress", at=NOW - timedelta(seconds=seconds_ago), data={"served": served})


def test_tokens_fall_into_the_slot_of_their_reading() -> None:
    readings = [reading(13, a=40), reading(11, a=100), reading(3, a=150, b=5), reading(1, a=200, b=5)]
    traffic = sum_up(readings, NOW, from_the_start=True)
    rates = traffic["a"].rates
    assert len(rates) == WINDOW_S // SLOT_S
    assert rates[-3:] == pytest.approx((100 / SLOT_S, 0, 100 / SLOT_S)) and not any(rates[:-3])
    assert traffic["a"].tokens_per_s == pytest.approx(10)
    assert (traffic["a"].generated_tokens, traffic["a"].prompt_tokens) == (200, 2000)
    assert traffic["b"].generated_tokens == 5


def test_what_came_before_the_first_reading_has_no_rate() -> None:
    (traffic,) = sum_up([reading(8, a=10_000), reading(6, a=10_050)], NOW, from_the_start=False).values()
    assert sum(traffic.rates) * SLOT_S == pytest.approx(50) and traffic.generated_tokens == 10_050


def test_old_traffic_has_no_rate_and_a_server_that_nobody_asked_is_absent() -> None:
    (traffic,) = sum_up([reading(600, a=10)], NOW, from_the_start=True).values()
    assert not any(traffic.rates) and traffic.generated_tokens == 10
    assert sum_up([Event(kind="progress", data={"generated_tokens": 3})], NOW, from_the_start=True) == {}
