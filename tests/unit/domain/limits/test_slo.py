"""Levels within latency limits: what is chosen keeps the limits, and nothing measured does better."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.compare import slo_sliders as compare_slo
from backend.domain.evaluation.document import Evaluation
from backend.domain.limits import slo
from backend.domain.limits.latency_limit import PERCENTILES, Percentile
from backend.domain.limits.slo import Slo
from tests import simulated

LIMITS = st.one_of(st.none(), st.floats(0, 2000))


@given(LIMITS, LIMITS, st.sampled_from(PERCENTILES))
def test_the_best_level_keeps_the_limits_and_no_measured_one_is_faster(
    ttft: float | None, tpot: float | None, percentile: Percentile
) -> None:
    document, limits = simulated.evaluation(), Slo(ttft_ms=ttft, tpot_ms=tpot, percentile=percentile)
    for result, outcome in zip(document.variants, slo.best_levels(document, limits), strict=True):
        output_tokens_per_s = [level.output_tokens_per_s for level in result.levels if limits.meets(level)]
        assert outcome.variant == result.name
        assert (outcome.level.output_tokens_per_s if outcome.level else None) == (
            max(output_tokens_per_s) if output_tokens_per_s else None
        )


def test_a_level_that_is_not_the_servers_or_that_failed_does_not_count() -> None:
    levels = [
        simulated.level(1),
        simulated.level(4, client_limited=True),
        simulated.level(16, invocation_errors=100, invocations=640),
        simulated.level(32, ttft_ms=None),
    ]
    document = simulated.evaluation(["a"], [1.0])
    document = document.model_copy(update={"variants": [simulated.result("a", levels)]})
    chosen = [slo.best_levels(document, limits)[0].level for limits in (Slo(), Slo(ttft_ms=1e9))]
    assert [level.concurrency if level else None for level in chosen] == [32, 1]


def test_a_variant_that_keeps_no_limit_is_last_and_says_so() -> None:
    document = simulated.evaluation(["slow", "quick"], [1.0, 4.0])
    strict = min(level.tpot_ms.p95 for level in document.variants[0].levels if level.tpot_ms) - 0.01
    rows = compare_slo.rows(slo.best_levels(document, Slo(tpot_ms=strict)))
    assert [row["Variant"] for row in rows] == ["quick", "slow"]
    assert rows[1]["Best at"] == "no measured level meets these limits"


def test_a_limit_holds_for_the_chosen_percentile() -> None:
    level = simulated.level(4)
    assert level.ttft_ms is not None and level.ttft_ms.p50 < level.ttft_ms.p99
    between = (level.ttft_ms.p50 + level.ttft_ms.p99) / 2
    assert Slo(ttft_ms=between, percentile="p50").meets(level)
    assert not Slo(ttft_ms=between, percentile="p99").meets(level)
    document = simulated.evaluation(["a"], [1.0]).model_copy(update={"variants": [simulated.result("a", [level])]})
    for percentile in PERCENTILES:
        latency = getattr(level.ttft_ms, percentile)
        assert slo.highest_latency([document], "ttft_ms", percentile) == latency
        (best,) = slo.best_levels(document, Slo(ttft_ms=latency, percentile=percentile))
        assert best.level == level
        (row,) = compare_slo.rows([best], percentile)
        assert f"TTFT {percentile} (ms)" in row


@given(st.floats(0.001, 1e7))
def test_a_slider_reaches_the_highest_latency_in_few_steps(highest: float) -> None:
    top, step = compare_slo.slider_scale(highest)
    assert top >= highest * (1 - 1e-9)
    assert top / step <= compare_slo.STEPS + 1


def test_without_latencies_there_is_nothing_to_limit() -> None:
    bare: Evaluation = simulated.evaluation(["a"], [1.0])
    bare = bare.model_copy(update={"variants": [simulated.result("a", [simulated.level(1, ttft_ms=None)])]})
    assert slo.highest_latency([bare], "ttft_ms") is None
    assert slo.highest_latency([bare], "tpot_ms")
