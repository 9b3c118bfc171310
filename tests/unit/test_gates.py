"""Conditions of a pipeline: what can be written, where they hold, and that what was not measured never passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from backend.cli.main import app
from backend.domain import gates
from backend.domain.errors import GateFailed
from backend.domain.evaluation import EvaluateOptions, Evaluation, Quality
from backend.domain.gates import InvalidGate
from backend.service import Workspace, evaluations, jobs
from tests import simulated


@pytest.fixture(scope="module")
def document() -> Evaluation:
    return simulated.evaluation()


def held(document: Evaluation, *written: str) -> list[str]:
    return [breach.words for breach in gates.breaches(document, [gates.read(text) for text in written])]


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
        ("output_tokens_per_s < 1e3", "output_tokens_per_s", 1000.0, None),
        ("ready_seconds > 90s", "ready_seconds", 90.0, None),
    ],
)
def test_what_can_be_written(written: str, metric: str, limit: float, at: int | None) -> None:
    gate = gates.read(written)
    assert (gate.metric, gate.limit, gate.concurrency) == (metric, pytest.approx(limit), at)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "is not a condition"),
        ("ttft_p95", "is not a condition"),
        ("ttft_p95 == 3", "is not a condition"),
        ("ttft_p96 > 300ms", "did you mean ttft_p9"),
        ("ttft_p95 > 3%", "write ms, s or us"),
        ("kl_mean > 3ms", "has no unit ms"),
        ("kl_mean > 0.1 at 4", "one figure a variant"),
        ("kl_mean > 1e999", "is no number"),
        ("kl_mean > 1.2.3", "is no number"),
    ],
)
def test_what_cannot_is_told_in_one_sentence(written: str, said: str) -> None:
    with pytest.raises(InvalidGate, match="--fail-if is wrong") as told:
        gates.read(written)
    assert said in str(told.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(written: str) -> None:
    try:
        gate = gates.read(written)
    except InvalidGate:
        return
    assert gate.metric in gates.metrics()


def test_every_named_figure_can_be_judged(document: Evaluation) -> None:
    judged = [gates.read(f"{metric} >= -1") for metric in gates.metrics()]
    assert {breach.gate.metric for breach in gates.breaches(document, judged)} == set(gates.metrics())


def test_a_condition_holds_at_every_level_or_only_at_the_one_named(document: Evaluation) -> None:
    levels = [level.concurrency for level in document.variants[1].levels]
    assert len(held(document, "ttft_p95 > 0ms")) == len(levels) * (len(document.variants) - 1)
    assert len(held(document, f"ttft_p95 > 0ms at {levels[-1]}")) == len(document.variants) - 1
    assert held(document, "ttft_p95 > 1000s") == []


def test_the_baseline_is_not_judged_unless_it_is_alone(document: Evaluation) -> None:
    assert not any(words.startswith(f"{document.variants[0].name} ") for words in held(document, "ttft_p95 > 0ms"))
    alone = document.model_copy(update={"variants": document.variants[:1]})
    assert all(words.startswith(document.variants[0].name) for words in held(alone, "ttft_p95 > 0ms"))
    assert held(alone, "ttft_p95 > 0ms")


def test_what_was_not_measured_does_not_pass(document: Evaluation) -> None:
    bare = document.model_copy(update={"variants": [result.model_copy(update={"quality": None}) for result in document.variants]})
    assert all("was not measured" in words for words in held(bare, "kl_mean > 0.5")) and held(bare, "kl_mean > 0.5")
    assert held(document, "ttft_p50 > 1s at 999") and "not measured" in held(document, "ttft_p50 > 1s at 999")[0]


def test_the_originals_own_weights_do_not_diverge(document: Evaluation) -> None:
    kept = Quality(scored="original", perplexity=10.0, perplexity_original=10.0)
    same = document.model_copy(
        update={"variants": [document.variants[0], document.variants[1].model_copy(update={"quality": kept})]}
    )
    assert held(same, "kl_mean > 0.001", "perplexity_increase > 1%") == []


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("ttft_p95 > 1ms at 7", "not measured; add it"),
        ("kl_mean > 1", "--no-quality"),
        ("price_per_million_output > 1", "--price"),
    ],
)
def test_a_figure_that_the_run_will_not_give_is_refused_before_it(written: str, said: str) -> None:
    with pytest.raises(InvalidGate, match=said):
        gates.check([gates.read(written)], [1, 4], quality=False, priced=False)
    gates.check([gates.read(written)], [1, 4, 7], quality=True, priced=True)


def test_the_service_reads_conditions_before_and_judges_after(document: Evaluation) -> None:
    options = EvaluateOptions(concurrency=(1, 4), quality=False)
    assert evaluations.conditions([], options, waits=False) == []
    with pytest.raises(InvalidGate, match="leave out --detach"):
        evaluations.conditions(["ttft_p95 > 1ms"], options, waits=False)
    with pytest.raises(InvalidGate, match="--no-quality"):
        evaluations.conditions(["kl_mean > 1"], options, waits=True)
    with pytest.raises(InvalidGate, match="add it"):
        evaluations.conditions(["ttft_p95 > 1ms at 16"], options, waits=True)
    asked = evaluations.conditions(["ttft_p95 > 0ms at 4"], options, waits=True)
    with pytest.raises(GateFailed, match=r"3 figures are not as asked: w8a8 at 4 streams: ttft_p95 is"):
        evaluations.judge(document, asked)
    evaluations.judge(document, [])


def test_the_levels_of_an_open_load_are_not_known_before() -> None:
    evaluations.conditions(["ttft_p95 > 1ms at 16"], EvaluateOptions(rate=(2.0,)), waits=True)


def test_the_command_refuses_a_condition_that_it_cannot_read(home: Workspace) -> None:
    told = CliRunner().invoke(
        app, ["evaluate", "starter", "--fail-if", "ttft_p96 > 1ms"], env={"WHETSTONE_HOME": str(home.settings.home)}
    )
    assert isinstance(told.exception, InvalidGate) and "did you mean" in str(told.exception)
    assert jobs.listing(home) == []
