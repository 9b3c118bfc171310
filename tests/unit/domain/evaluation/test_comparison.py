"""Verdicts: right on known truths, silent on noise, and never in contradiction with the interval beside them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from backend.domain.evaluation.comparison import HEADLINE, compare, higher_is_better
from backend.domain.evaluation.document import Comparison, Level, Quality
from backend.domain.evaluation.outcome import interval_outcome, significance_outcome
from backend.domain.figures import times
from backend.domain.load.load import Load
from backend.domain.maths.intervals import holm
from backend.present.words import headline
from backend.present.words.measurements import quality_cost
from backend.present.words.verdicts import describe_comparison, level_sentence, level_verdicts
from tests.properties import examples
from tests.simulated import aa_results, evaluation, level, quality, result

METRICS = ("ttft_ms_p50", "tpot_ms_p50", "client_latency_ms_p50", "output_tokens_per_s")


def _compare(baseline: Level, variant: Level) -> dict[str, Comparison]:
    return {row.metric: row for row in compare([result("original", [baseline]), result("w8a8", [variant])])}


def _with_blocks(blocks: list[dict[str, float]], **changes: Any) -> Level:
    return level(4, **changes).model_copy(update={"blocks": blocks})


def _throughputs(*values: float) -> Level:
    return _with_blocks([{"output_tokens_per_s": value} for value in values])


def test_the_interval_is_the_paired_t_interval_on_log_ratios() -> None:
    """Against scipy: one hypothesis only has figures, so Holm leaves it alone."""
    baseline, variant = (100.0, 104.0, 97.0, 101.0, 99.0), (131.0, 133.0, 130.0, 129.0, 134.0)
    row = _compare(_throughputs(*baseline), _throughputs(*variant))["output_tokens_per_s"]
    logs = [math.log(b / a) for a, b in zip(baseline, variant, strict=True)]
    expected = stats.ttest_1samp(logs, 0.0)
    low, high = expected.confidence_interval(0.95)
    assert row.ratio == pytest.approx(math.exp(sum(logs) / 5))
    assert row.ci95 == pytest.approx((math.exp(low), math.exp(high)))
    assert row.p_value == pytest.approx(expected.pvalue)
    assert describe_comparison(row).startswith("faster by 1.31x (95% ")


def test_holm_steps_down_as_in_the_paper() -> None:
    tested = holm([0.01, 0.04, 0.03, 0.005])
    assert [row.p_adjusted for row in tested] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [row.alpha for row in tested] == pytest.approx([0.05 / 3, 0.025, 0.025, 0.05 / 4])


@given(st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=40))
def test_holm_rejects_at_least_what_bonferroni_does_and_keeps_the_order(p_values: list[float]) -> None:
    tested = holm(p_values)
    for p, row in zip(p_values, tested, strict=True):
        assert row.p_adjusted >= p
        assert row.p_adjusted <= min(1.0, len(p_values) * p) or any(q < p for q in p_values)
        assert (p <= row.alpha) == (row.p_adjusted <= 0.05) or math.isclose(p, row.alpha)
    ranked = sorted(zip(p_values, tested, strict=True), key=lambda pair: pair[0])
    assert [row.p_adjusted for _, row in ranked] == sorted(row.p_adjusted for row in tested)


@examples(60)
@given(
    st.lists(st.floats(0.5, 4), min_size=1, max_size=3),
    st.integers(3, 8),
    st.sampled_from([0.001, 0.02, 0.1]),
    st.integers(0, 999),
)
def test_verdict_and_interval_never_contradict_each_other(
    speeds: list[float], repeats: int, noise: float, seed: int
) -> None:
    levels = [[level(c, speed, repeats, noise, seed + i) for c in (1, 4)] for i, speed in enumerate([1.0, *speeds])]
    for row in compare([result(f"v{i}", created) for i, created in enumerate(levels)]):
        assert row.ratio is not None
        assert row.ci95 is not None
        assert row.ci95[0] <= row.ratio <= row.ci95[1]
        if repeats < 5:
            assert row.p_value is None
            assert "too few repeats for a verdict" in describe_comparison(row)
            continue
        outside = row.ci95[0] > 1 or row.ci95[1] < 1
        assert outside == row.significant == describe_comparison(row).startswith(("faster", "slower"))
        shown = [float(x) for x in re.findall(r"\d+\.\d+|\d+", describe_comparison(row).split("95%")[1])]
        assert outside == (shown[0] > 1 or shown[1] < 1), describe_comparison(row)
        if outside:
            better = (row.ratio > 1) == ("tokens" in row.metric)
            assert describe_comparison(row).startswith("faster" if better else "slower")


def test_a_model_compared_with_itself_differs_in_at_most_ten_of_a_hundred() -> None:
    false = sum(any(row.significant for row in compare(aa_results(seed)) if not row.secondary) for seed in range(100))
    assert false <= 10


def test_a_real_difference_is_found_in_most_evaluations() -> None:
    """Power: without it the A/A test above would pass on a comparison that never says anything."""
    outcome = 0
    for seed in range(50):
        sides = [result("original", [level(4, 1.0, seed=seed)]), result("w8a8", [level(4, 1.31, seed=seed + 500)])]
        rows = {row.metric: row for row in compare(sides)}
        outcome += describe_comparison(rows["output_tokens_per_s"]).startswith("faster by 1.")
    assert outcome >= 45


def test_each_level_has_its_own_verdict_on_each_headline_metric() -> None:
    rows = evaluation().comparison
    assert [(row.load.value, row.metric) for row in rows if row.variant == "w8a8"] == [
        (c, m) for c in (1, 4, 16) for m in METRICS
    ]
    assert {row.baseline for row in rows} == {"original"}


def test_the_mean_is_compared_where_there_is_no_median() -> None:
    blocks = [dict.fromkeys(HEADLINE, 10.0 + b) for b in range(5)]
    assert set(_compare(_with_blocks(blocks), _with_blocks(blocks))) == set(HEADLINE)


@pytest.mark.parametrize(("repeats", "has_interval"), [(1, False), (2, False), (3, True), (4, True)])
def test_few_repeats_give_a_figure_without_a_verdict(repeats: int, has_interval: bool) -> None:
    for row in _compare(level(4, repeats=repeats), level(4, 1.5, repeats=repeats, seed=1)).values():
        assert row.ratio is not None
        assert row.p_value is None
        assert (row.ci95 is not None) == has_interval
        assert "too few repeats for a verdict" in describe_comparison(row)
        assert "faster" not in describe_comparison(row)


def test_repeats_without_any_spread_get_a_sentence_instead_of_a_verdict() -> None:
    same = _compare(_throughputs(*[50.0] * 5), _throughputs(*[50.0] * 5))["output_tokens_per_s"]
    scaled = _compare(_throughputs(1, 2, 3, 4, 5), _throughputs(2, 4, 6, 8, 10))["output_tokens_per_s"]
    assert "exactly the baseline's figure" in describe_comparison(same)
    assert "exactly the same ratio" in describe_comparison(scaled)
    assert (same.ratio, scaled.ratio) == pytest.approx((1.0, 2.0))


@pytest.mark.parametrize("odd", [0.0, math.nan, math.inf, -1.0])
def test_a_repeat_without_a_usable_figure_takes_the_verdict_away(odd: float) -> None:
    row = _compare(_throughputs(50, 51, 52, 53, 54), _throughputs(80, 81, odd, 83, 84))["output_tokens_per_s"]
    assert "only 4 of 5 repeats gave a figure for both" in describe_comparison(row)
    assert row.ratio == pytest.approx(1.58, abs=0.03)
    assert (row.ci95, row.p_value) == (None, None)


def test_a_metric_that_nobody_measured_has_no_ratio() -> None:
    row = _compare(_throughputs(*range(1, 6)), _throughputs(*range(1, 6)))["ttft_ms"]
    assert row.ratio is None
    assert describe_comparison(row) == "no verdict: no repeat gave a figure for both variants"


def test_levels_without_blocks_and_unequal_repeats_are_said() -> None:
    assert all(row.ratio is None for row in _compare(_with_blocks([]), _with_blocks([])).values())
    unequal = _compare(level(4, repeats=5), level(4, repeats=6, seed=1))["output_tokens_per_s"]
    assert "6 repeats against 5" in describe_comparison(unequal)


@pytest.mark.parametrize("held_back", ["original", "w8a8"])
def test_a_level_that_the_client_held_back_is_not_compared(held_back: str) -> None:
    sides = {name: level(4, seed=i, client_limited=name == held_back) for i, name in enumerate(("original", "w8a8"))}
    for row in _compare(sides["original"], sides["w8a8"]).values():
        assert describe_comparison(row) == (
            f"not comparable: the load generator, not the server, limited the figures of `{held_back}`"
        )
        assert row.p_value is None


def test_more_than_one_error_in_a_hundred_is_not_compared_and_one_is() -> None:
    failing = _compare(level(4), level(4, seed=1, invocations=100, invocation_errors=2))
    assert {describe_comparison(row) for row in failing.values()} == {
        "not comparable: 2 of 100 requests to `w8a8` failed"
    }
    passing = _compare(level(4), level(4, seed=1, invocations=100, invocation_errors=1))
    assert all(row.p_value is not None for row in passing.values())


def test_a_lone_variant_and_levels_of_one_side_only_are_no_comparison() -> None:
    assert compare([]) == []
    assert compare([result("original", [level(1)])]) == []
    assert compare([result("original", [level(1)]), result("w8a8", [level(4)])]) == []


@given(
    st.lists(
        st.dictionaries(st.sampled_from(METRICS + HEADLINE), st.floats(), max_size=5),
        max_size=7,
    ),
    st.lists(st.dictionaries(st.sampled_from(METRICS + HEADLINE), st.floats(), max_size=5), max_size=7),
)
def test_no_figures_whatever_raise_and_the_answer_is_valid_json(
    a: list[dict[str, float]], b: list[dict[str, float]]
) -> None:
    rows = _compare(_with_blocks(a), _with_blocks(b))
    for row in rows.values():
        assert describe_comparison(row)
        assert Comparison.model_validate_json(row.model_dump_json()) == row
    assert level_sentence(list(rows.values()), None)


@pytest.mark.parametrize(
    ("metric", "ratio", "interval", "says"),
    [
        ("ttft_ms_p50", 0.5, (0.4, 0.625), "faster by 2.00x (95% 1.60 to 2.50)"),
        ("ttft_ms_p50", 2.0, (1.6, 2.5), "slower by 2.00x (95% 1.60 to 2.50)"),
        ("output_tokens_per_s", 1.8, (1.7, 1.9), "faster by 1.80x (95% 1.70 to 1.90)"),
        ("output_tokens_per_s", 0.5, (0.4, 0.625), "slower by 2.00x (95% 1.60 to 2.50)"),
        ("output_tokens_per_s", 1.0006, (1.0002, 1.001), "faster by 1.0006x (95% 1.0002 to 1.0010)"),
        ("output_tokens_per_s", 123.4, (101.2, 150.6), "faster by 123x (95% 101 to 151)"),
    ],
)
def test_a_verdict_names_direction_factor_and_interval(
    metric: str, ratio: float, interval: tuple[float, float], says: str
) -> None:
    row = _row(metric, ratio, interval, 0.001)
    assert (row.outcome, describe_comparison(row)) == ("better" if "faster" in says else "worse", says)


def test_factors_far_from_one_stay_readable() -> None:
    assert [times(x) for x in (0.00004, 0.0123, 0.76, 12.34, 1e9)] == [
        "4.00e-05x",
        "0.0123x",
        "0.76x",
        "12.3x",
        "1.00e+09x",
    ]


def _row(metric: str, ratio: float, interval: tuple[float, float], p: float) -> Comparison:
    return Comparison(
        load=Load("closed", 4),
        metric=metric,
        baseline="original",
        variant="w8a8",
        ratio=ratio,
        ci95=interval,
        p_value=p,
        why=None,
        outcome=significance_outcome(p <= 0.05, (ratio > 1) == higher_is_better(metric)),
    )


def test_the_sentence_names_speed_direction_and_quality_cost() -> None:
    rows = [_row("ttft_ms_p50", 1.01, (0.95, 1.07), 0.4), _row("output_tokens_per_s", 1.31, (1.25, 1.38), 0.001)]
    assert level_sentence(rows, Quality(kl_mean=0.0004)) == (
        "At 4 streams `w8a8` gives 1.31x the output tokens/s of `original` (95% 1.25 to 1.38); "
        "TTFT the same within 7%; KL 0.0004."
    )


def test_a_sentence_without_quality_says_that_it_was_not_measured() -> None:
    shown = level_sentence([_row("output_tokens_per_s", 1.31, (1.25, 1.38), 0.001)], None)
    assert shown.endswith("; quality not measured.")
    assert quality_cost(Quality(scored="unavailable")) == "quality not measured"
    served = Quality(scored="unavailable", served_kl=0.003, served_same_top=0.96)
    assert headline.short_quality(served) == "KL 0.0030 as served: same top token at 96% of positions"
    assert quality_cost(quality(0.0004)) == "KL 0.0004, perplexity 61.90 against 61.88"


def test_agreement_is_told_with_its_number_and_surely_where_it_is_all_there_is() -> None:
    agreed = Quality(
        scored="unavailable", answers=12, answers_asked=12, exact_match=0.75, exact_ci95=(0.468, 0.911), token_f1=1
    )
    assert (
        quality_cost(agreed) == "exact match 75.0% (95% 46.8 to 91.1), token F1 100.0% over 12 answers, KL not measured"
    )
    scored = agreed.model_copy(update={"kl_mean": 0.0004, "greedy_match": 0.9})
    assert quality_cost(scored) == "KL 0.0004, greedy match 90.0%, exact match 75.0%, token F1 100.0% over 12 answers"
    assert quality_cost(Quality(answers=0, answers_asked=12)) == "none of 12 answers could be compared, KL not measured"
    assert quality_cost(Quality(greedy_match=0.98)) == "greedy match 98.0%, KL not measured", "of an earlier version"


def test_a_reason_that_holds_for_every_metric_is_said_once() -> None:
    few = _compare(level(4, repeats=3), level(4, 1.5, repeats=3, seed=1))
    assert level_sentence(list(few.values()), None).count("too few repeats") == 1
    limited = _compare(level(4), level(4, client_limited=True, seed=1))
    shown = level_sentence(list(limited.values()), None)
    assert shown.count("not comparable") == 1
    assert not re.search(r"\dx", shown)


def test_there_is_one_sentence_a_variant_and_level() -> None:
    verdicts = level_verdicts(evaluation())
    assert [(v.variant, v.load.value) for v in verdicts] == [
        (n, c) for n in ("w8a8", "draft", "w8a8-draft") for c in (1, 4, 16)
    ]


@pytest.mark.parametrize(
    ("interval", "better", "outcome"),
    [
        ((0.77, 6.50), True, "undecided"),
        ((0.95, 1.08), False, "same"),
        ((0.9, 1.2), True, "undecided"),
        ((1.01, 1.05), True, "better"),
        ((0.5, 0.9), False, "worse"),
    ],
)
def test_what_is_too_noisy_to_tell_is_not_called_the_same(
    interval: tuple[float, float], better: bool, outcome: str
) -> None:
    assert interval_outcome(interval, better) == outcome
