"""Objectives: read, counted request by request, and judged only as surely as the number of requests allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from backend.domain.errors import RequestError
from backend.domain.limits.objective import check_objectives, parse_objective
from backend.domain.load.records import RequestRecord
from backend.domain.maths.intervals import wilson


def records(*ttfts_ms: float | None, warm: bool = False) -> list[RequestRecord]:
    """One answer each with that TTFT; None is a request that failed."""
    return [
        RequestRecord(
            index=n,
            stream=0,
            prompt=0,
            warm=warm,
            intended=0.0,
            sent=0.0,
            end=9.0,
            status="timeout" if ttft is None else "ok",
            first_content=None if ttft is None else ttft / 1000,
            chunk_times=() if ttft is None else (ttft / 1000,),
        )
        for n, ttft in enumerate(ttfts_ms)
    ]


def test_an_objective_is_read_with_its_share_and_unit() -> None:
    objective = parse_objective(" ttft_p95 <= 0.3s ")
    assert (*objective.limit, objective.share, objective.text) == ("ttft_ms", 300.0, 0.95, "ttft_p95<=0.3s")
    assert parse_objective("latency_p99<5s").limit.metric == "client_latency_ms"


@pytest.mark.parametrize(
    "text", ["", "ttft<=300ms", "ttft_p95>300ms", "ttft_p95<=300", "speed_p95<=3ms", "ttft_p00<=3ms", "ttft_p95<=0ms"]
)
def test_what_is_no_objective_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(RequestError, match="ttft_p95<=300ms"):
        parse_objective(text)


@given(st.integers(0, 400), st.integers(1, 400))
def test_the_interval_is_wilsons(within: int, total: int) -> None:
    within = min(within, total)
    expected = binomtest(within, total).proportion_ci(0.95, method="wilson")
    assert wilson(within, total) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_nothing_measured_says_nothing() -> None:
    assert wilson(0, 0) == (0, 1)
    assert check_objectives([parse_objective("ttft_p95<=1s")], []).verdict == "undecided"


def test_an_objective_is_kept_only_with_enough_requests() -> None:
    objective = parse_objective("ttft_p95<=100ms")
    needed = objective.requests_needed()
    assert needed == 73
    assert check_objectives([objective], records(*[50.0] * needed)).verdict == "kept"
    assert check_objectives([objective], records(*[50.0] * (needed - 1))).verdict == "undecided"
    assert check_objectives([objective], records(*[150.0] * 10)).verdict == "missed"


def test_a_failed_request_is_outside_and_warm_up_does_not_count() -> None:
    judged = check_objectives(
        [parse_objective("ttft_p50<=100ms")], [*records(50.0, None), *records(50.0, 50.0, warm=True)]
    )
    assert judged.shares == (0.5,)


def test_all_objectives_must_be_kept() -> None:
    good, bad = parse_objective("ttft_p50<=100ms"), parse_objective("ttft_p99<=10ms")
    assert check_objectives([good], records(*[50.0] * 40)).verdict == "kept"
    assert check_objectives([good, bad], records(*[50.0] * 40)).verdict == "missed"
