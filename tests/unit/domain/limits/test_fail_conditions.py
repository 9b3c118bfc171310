"""Conditions of a pipeline: what can be written, where they hold, and that what was not measured never passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from backend.cli.main import app
from backend.cli.verbs.evaluate import summary_text
from backend.domain.errors import GateFailed
from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.document import EvaluateOptions, Evaluation, Quality, VariantResult
from backend.domain.limits import fail_conditions
from backend.domain.limits.fail_conditions import InvalidGate
from backend.domain.load.load import Load
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from tests import simulated


@pytest.fixture(scope="module")
def document() -> Evaluation:
    return simulated.evaluation()


def breaches_of(document: Evaluation, *written: str) -> list[str]:
    return [
        breach.words
        for breach in fail_conditions.find_breaches(
            document, [fail_conditions.parse_condition(text) for text in written]
        )
    ]


@pytest.mark.parametrize(
    ("written", "metric", "limit", "at"),
    [
        ("ttft_p95 > 300ms", "ttft_p95", 300.0, None),
        ("ttft_p95>0.3s", "ttft_p95", 300.0, None),
        ("  tpot_p50 >= 500us at 4 ", "tpot_p50", 0.5, 4),
        ("client_latency_mean > 2000", "client_latency_mean", 2000.0, None),
        ("kl_mean > 0.02", "kl_mean", 0.02, None),
        ("perplexity_increase > 1%", "perplexity_increase", 0.01, None),
        ("error_share > 1 % at 16", "error_share", 0.01, 16),
        ("ttft_p95 > 0.3s at 0.5/s", "ttft_p95", 300.0, 0.5),
        ("ttft_p95 > 0.3s at 4 requests/s", "ttft_p95", 300.0, 4),
        ("output_tokens_per_s < 1e3", "output_tokens_per_s", 1000.0, None),
        ("ready_seconds > 90s", "ready_seconds", 90.0, None),
    ],
)
def test_what_can_be_written(written: str, metric: str, limit: float, at: int | None) -> None:
    gate = fail_conditions.parse_condition(written)
    assert (gate.metric, gate.limit, gate.at) == (metric, pytest.approx(limit), at)
    assert gate.per_second == written.endswith("/s")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("", "is not a condition"),
        ("ttft_p95", "is not a condition"),
        ("ttft_p95 == 3", "is not a condition"),
        ("ttft_p95 > 3 at four", "is not a condition"),
        ("ttft_p96 > 300ms", "did you mean ttft_p9"),
        ("ttft_p95 > 3%", "write ms, s or us"),
        ("kl_mean > 3ms", "has no unit ms"),
        ("kl_mean > 0.1 at 4", "one figure a variant"),
        ("kl_mean > 1e999", "is no number"),
        ("kl_mean > 1.2.3", "is no number"),
    ],
)
def test_what_cannot_is_told_in_one_sentence(written: str, message: str) -> None:
    with pytest.raises(InvalidGate, match="Fail if is wrong") as error:
        fail_conditions.parse_condition(written)
    assert message in str(error.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(written: str) -> None:
    try:
        gate = fail_conditions.parse_condition(written)
    except InvalidGate:
        return
    assert gate.metric in fail_conditions.metric_names()


def test_every_named_figure_can_be_judged(document: Evaluation) -> None:
    judged = [fail_conditions.parse_condition(f"{metric} >= -1") for metric in fail_conditions.metric_names()]
    assert {breach.condition.metric for breach in fail_conditions.find_breaches(document, judged)} == set(
        fail_conditions.metric_names()
    )


def test_a_condition_holds_at_every_level_or_only_at_the_one_named(document: Evaluation) -> None:
    levels = [level.concurrency for level in document.variants[1].levels]
    assert len(breaches_of(document, "ttft_p95 > 0ms")) == len(levels) * (len(document.variants) - 1)
    assert len(breaches_of(document, f"ttft_p95 > 0ms at {levels[-1]}")) == len(document.variants) - 1
    assert breaches_of(document, "ttft_p95 > 1000s") == []


def test_the_baseline_is_not_judged_unless_it_is_alone(document: Evaluation) -> None:
    assert not any(
        words.startswith(f"{document.variants[0].name} ") for words in breaches_of(document, "ttft_p95 > 0ms")
    )
    alone = document.model_copy(update={"variants": document.variants[:1]})
    assert all(words.startswith(document.variants[0].name) for words in breaches_of(alone, "ttft_p95 > 0ms"))
    assert breaches_of(alone, "ttft_p95 > 0ms")


def test_what_was_not_measured_does_not_pass(document: Evaluation) -> None:
    bare = document.model_copy(
        update={"variants": [result.model_copy(update={"quality": None}) for result in document.variants]}
    )
    assert all("was not measured" in words for words in breaches_of(bare, "kl_mean > 0.5")) and breaches_of(
        bare, "kl_mean > 0.5"
    )
    assert (
        breaches_of(document, "ttft_p50 > 1s at 999")
        and "not measured" in breaches_of(document, "ttft_p50 > 1s at 999")[0]
    )


def cut(document: Evaluation, **changed: Any) -> Evaluation:
    """With its second variant alone beside the baseline, and changed."""
    first, second = document.variants[:2]
    return document.model_copy(update={"variants": [first, second.model_copy(update=changed)]})


def test_a_level_that_was_asked_for_and_is_missing_does_not_pass(document: Evaluation) -> None:
    one = cut(document, levels=document.variants[1].levels[:1])
    assert breaches_of(one, "ttft_p95 > 1000s") == [
        "w8a8 at 4 streams: ttft_p95 was not measured (fails if ttft_p95 > 1000s)",
        "w8a8 at 16 streams: ttft_p95 was not measured (fails if ttft_p95 > 1000s)",
    ]
    assert breaches_of(one, "ttft_p95 > 1000s at 1") == []
    assert len(breaches_of(cut(document, levels=[]), "error_share > 50%")) == 3


def test_a_level_with_fewer_repeats_than_asked_does_not_pass(document: Evaluation) -> None:
    levels = document.variants[1].levels
    short = levels[1].model_copy(update={"repeats": 2, "blocks": levels[1].blocks[:2]})
    cut_short = cut(document, levels=[levels[0], short, levels[2]])
    message = "w8a8 at 4 streams: ttft_p95 was measured in only 2 of 5 repeats (fails if ttft_p95 > 1000s)"
    assert breaches_of(cut_short, "ttft_p95 > 1000s") == [message]
    assert "ttft_p95 is " in breaches_of(cut_short, "ttft_p95 > 0ms at 4")[0]


def test_a_level_without_the_figure_does_not_pass(document: Evaluation) -> None:
    levels = [
        level.model_copy(update={"ttft_ms": None, "acceptance_rate": None}) for level in document.variants[1].levels
    ]
    assert len(breaches_of(cut(document, levels=levels), "ttft_p95 > 1000s", "acceptance_rate < 0")) == 6


@pytest.mark.parametrize("mode", ["rate", "ramp", "trace"])
def test_an_open_loop_is_held_at_what_was_asked_for_and_not_at_the_mean_under_way(
    document: Evaluation, mode: str
) -> None:
    request = {"rate": {"rate": (2.0, 8.0)}, "ramp": {"ramp": (1.0, 8.0)}, "trace": {"trace": True}}[mode]
    loads = {"rate": [Load("rate", 2), Load("rate", 8)], "ramp": [Load("ramp", 8)], "trace": [Load("trace")]}[mode]
    levels = [simulated.level(3, load=load) for load in loads]
    clocked = cut(document, levels=levels).model_copy(update={"options": EvaluateOptions(**request)})
    words = loads[-1].words
    assert breaches_of(clocked, "ttft_p95 > 1000s") == []
    assert "was not measured" in breaches_of(clocked, "ttft_p95 > 1000s at 3")[0]
    shortened = cut(clocked, levels=levels[:-1])
    assert breaches_of(shortened, "ttft_p95 > 1000s") == [
        f"w8a8 at {words}: ttft_p95 was not measured (fails if ttft_p95 > 1000s)"
    ]
    if mode != "trace":
        for written in ("ttft_p95 > 0ms at 8", "ttft_p95 > 0ms at 8/s"):
            assert [
                message.startswith(f"w8a8 at {words}: ttft_p95 is ") for message in breaches_of(clocked, written)
            ] == [True]
        assert "was not measured" in breaches_of(shortened, "ttft_p95 > 1000s at 8/s")[0]


def test_a_search_is_held_at_the_levels_it_chose_and_one_cut_short_does_not_pass(document: Evaluation) -> None:
    levels = [simulated.level(streams, repeats=1) for streams in (1, 2, 3)]
    searched = cut(document, levels=levels).model_copy(update={"options": EvaluateOptions(sweep=("ttft_p95<=1s",))})
    assert breaches_of(searched, "ttft_p95 > 1000s", "ttft_p95 > 1000s at 2") == []
    assert len(breaches_of(searched, "ttft_p95 > 0ms")) == 3
    assert "was not measured" in breaches_of(searched, "ttft_p95 > 1000s at 4")[0]
    lost = cut(searched, lost="It stopped answering.")
    assert breaches_of(lost, "ttft_p95 > 1000s") == ["w8a8: ttft_p95 was not measured (fails if ttft_p95 > 1000s)"]
    assert breaches_of(lost, "ttft_p95 > 1000s at 2") == []


def test_the_originals_own_weights_do_not_diverge(document: Evaluation) -> None:
    remaining = Quality(scored="original", perplexity=10.0, perplexity_original=10.0)
    same = document.model_copy(
        update={"variants": [document.variants[0], document.variants[1].model_copy(update={"quality": remaining})]}
    )
    assert breaches_of(same, "kl_mean > 0.001", "perplexity_increase > 1%") == []


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("ttft_p95 > 1ms at 7", r"not measured; add it \(measured: 1 stream, 4 streams\), or leave out `at`"),
        ("kl_mean > 1", "needs quality"),
        ("price_per_million_output > 1", "needs price per hour"),
        ("ready_seconds > 90s", "needs starts apart"),
    ],
)
def test_a_figure_that_the_run_will_not_give_is_refused_before_it(written: str, message: str) -> None:
    with pytest.raises(InvalidGate, match=message):
        fail_conditions.check_conditions(
            [fail_conditions.parse_condition(written)], EvaluateOptions(concurrency=(1, 4), quality=False)
        )
    fail_conditions.check_conditions(
        [fail_conditions.parse_condition(written)],
        EvaluateOptions(concurrency=(1, 4, 7), price_per_hour=1.0, starts_apart=True),
    )


def test_the_service_reads_conditions_before_and_judges_after(document: Evaluation) -> None:
    options = EvaluateOptions(concurrency=(1, 4), quality=False)
    assert evaluations.read_gates([], options, waits=False) == []
    with pytest.raises(InvalidGate, match="leave out detach"):
        evaluations.read_gates(["ttft_p95 > 1ms"], options, waits=False)
    with pytest.raises(InvalidGate, match="needs quality"):
        evaluations.read_gates(["kl_mean > 1"], options, waits=True)
    with pytest.raises(InvalidGate, match="add it"):
        evaluations.read_gates(["ttft_p95 > 1ms at 16"], options, waits=True)
    gates = evaluations.read_gates(["ttft_p95 > 0ms at 4"], options, waits=True)
    with pytest.raises(GateFailed, match=r"3 figures break their limits: w8a8 at 4 streams: ttft_p95 is"):
        evaluations.check_gates(document, gates)
    evaluations.check_gates(document, [])


def test_rates_of_an_open_load_are_known_before_and_levels_of_a_search_are_not() -> None:
    rates = EvaluateOptions(rate=(2.0, 4.0))
    evaluations.read_gates(["ttft_p95 > 1ms at 4", "ttft_p95 > 1ms at 2/s"], rates, waits=True)
    with pytest.raises(InvalidGate, match="measured: 2 requests/s, 4 requests/s"):
        evaluations.read_gates(["ttft_p95 > 1ms at 16"], rates, waits=True)
    with pytest.raises(InvalidGate, match="measured: 1 stream, 4 streams"):
        evaluations.read_gates(["ttft_p95 > 1ms at 4/s"], EvaluateOptions(), waits=True)
    with pytest.raises(InvalidGate, match="measured: the trace"):
        evaluations.read_gates(["ttft_p95 > 1ms at 4"], EvaluateOptions(trace=True), waits=True)
    evaluations.read_gates(["ttft_p95 > 1ms at 16"], EvaluateOptions(sweep=("ttft_p95<=1s",)), waits=True)


def test_the_command_says_the_rate_that_was_asked_for(document: Evaluation) -> None:
    def clocked(result: VariantResult, under_way: int) -> VariantResult:
        levels = [simulated.level(under_way, seed=under_way, load=Load("rate", rate)) for rate in (2.0, 8.0)]
        return result.model_copy(update={"levels": levels})

    results = [clocked(document.variants[0], 3), clocked(document.variants[1], 5)]
    text = summary_text(document.model_copy(update={"variants": results, "comparison": compare(results)}))
    assert (
        "  at 2 requests/s, output_tokens_per_s: w8a8" in text
        and "  at 8 requests/s, ttft_ms_p50 (secondary): w8a8" in text
    )
    assert "stream" not in text
    assert "  at 1 stream, ttft_ms_p50 (secondary): w8a8 is " in summary_text(document)


def test_the_command_refuses_a_condition_that_it_cannot_read(home: Workspace) -> None:
    result = CliRunner().invoke(
        app, ["evaluate", "starter", "--fail-if", "ttft_p96 > 1ms"], env={"WHETSTONE_HOME": str(home.settings.home)}
    )
    assert isinstance(result.exception, InvalidGate) and "did you mean" in str(result.exception)
    assert jobs.listing(home) == []
