"""Answers beside the speed: those of conversations side by side, and how far, over how many and how surely they
agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.results import requests as requests_view
from backend.cli.verbs.evaluate import summary_text
from backend.domain.evaluation.document import EvaluateOptions, Evaluation, Quality
from backend.domain.load.load import Load
from backend.domain.load.records import RequestRecord
from backend.domain.workload import workload
from backend.evaluate.report import tables
from backend.service import Workspace
from backend.service.evaluations import evaluations, request_pairs
from backend.store import history
from backend.worker.measuring.records import MeasuredLevel, write_records
from backend.worker.measuring.report_data import InMemorySource
from tests import simulated, studio

NAMES, RATE = ("original", "w8a8"), 4.0
TALKS = [{"turns": ["who", "why"]}, {"turns": ["when", "where"]}, {"turns": ["what", "which"]}]
TURN_ORDERS = {"as sent": [(0, 0), (1, 0), (0, 1), (1, 1)], "the second first": [(0, 0), (1, 0), (1, 1), (0, 1)]}
"""(session, turn) in the order of issue: two conversations, whichever of them is answered first."""


def run(order: str, name: str) -> list[RequestRecord]:
    """Each due at a full second, sent half a second late, and answered at the next one."""
    return [
        RequestRecord(
            index=index,
            stream=session,
            prompt=session,
            warm=False,
            intended=float(index),
            sent=index + 0.5,
            end=index + 1.0,
            clock="intended",
            session=session,
            turn=turn,
            status="ok",
            text=f"{name} {session} {turn}",
        )
        for index, (session, turn) in enumerate(TURN_ORDERS[order])
    ]


@pytest.fixture
def talks(tmp_path: Path) -> workload.Workload:
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in TALKS))
    return workload.parse_workload("talks", path.read_bytes())


@pytest.fixture
def document(talks: workload.Workload, tmp_path: Path) -> Evaluation:
    evaluation = simulated.evaluation(names=NAMES, speeds=(1.0, 1.3), repeats=2, levels=(2,))
    options = EvaluateOptions(rate=(RATE,), repeats=2, workload=str(tmp_path / "talks.jsonl"))
    levels = [
        [level.model_copy(update={"load": Load("rate", RATE)}) for level in result.levels]
        for result in evaluation.variants
    ]
    variants = [
        result.model_copy(update={"levels": own}) for result, own in zip(evaluation.variants, levels, strict=True)
    ]
    return evaluation.model_copy(
        update={"variants": variants, "options": options, "workload": talks.about(), "comparison": []}
    )


def runs() -> list[MeasuredLevel]:
    """The baseline twice as sent; the variant once in each order."""
    orders = (("as sent", "as sent"), ("the second first", "as sent"))
    return [
        MeasuredLevel(v, Load("rate", RATE), [run(order, NAMES[v]) for order in own]) for v, own in enumerate(orders)
    ]


def keep(home: Workspace, document: Evaluation, folder: Path) -> str:
    write_records(folder / "records.parquet", NAMES, runs())
    identity = studio.evaluation(home, document)
    with home.store.session() as session:
        history.get_evaluation(session, identity).path = str(folder)
    return identity


def test_conversations_are_paired_by_turn_whichever_was_answered_first(
    studio_home: Workspace, document: Evaluation, talks: workload.Workload, tmp_path: Path
) -> None:
    view = evaluations.show(studio_home, keep(studio_home, document, tmp_path))
    (request,) = request_pairs.loads(view)
    pairs = request_pairs.read_pairs(view, "w8a8", request)
    assert len(pairs) == 8
    for pair in pairs:
        assert pair.baseline.split()[1:] == pair.variant.split()[1:], "the same session and turn"
        turns = TALKS[pair.prompt]["turns"]
        assert pair.turn is not None
        assert pair.prompt_text == (f"Turn 2: {turns[1]}" if pair.turn else turns[0])
        assert (pair.baseline_s, pair.variant_s) == (1.0, 1.0), "from when it was due, as its clock says"
    source = InMemorySource(NAMES, runs(), talks, document.options)
    reported = list(source.pairs(document.variants[0].levels[0], "w8a8"))
    assert sorted(reported) == sorted((p.block, p.prompt_text, p.baseline, p.variant) for p in pairs)


def test_the_page_says_whose_answers_a_conversation_goes_on_from(
    studio_home: Workspace, document: Evaluation, tmp_path: Path
) -> None:
    identity = keep(studio_home, document, tmp_path)
    text = studio.says(studio.open_page("evaluate", id=identity, evaluate_view="Requests"))
    assert "From the second turn on, a conversation continues from the variant's own answers." in text
    view = evaluations.show(studio_home, identity)
    pair = request_pairs.read_pairs(view, "w8a8", request_pairs.loads(view)[0])[0]
    assert requests_view.pair_rows([pair._replace(prompt=4, turn=1, prompt_text=None)])[0]["Prompt"] == "line 5, turn 2"


AGREED = Quality(
    scored="unavailable",
    answers=10,
    answers_asked=12,
    greedy_match=0.95,
    greedy_ci95=(0.6, 0.995),
    exact_match=0.7,
    exact_ci95=(0.397, 0.892),
    token_f1=0.875,
    token_f1_ci95=(0.75, 1.0),
)
SCORED = AGREED.model_copy(
    update={"scored": "dequantized", "kl_mean": 0.0004, "perplexity": 61.9, "perplexity_original": 61.88}
)
SURELY = (
    "greedy match 95.0% (95% 60.0 to 99.5), exact match 70.0% (95% 39.7 to 89.2), token F1 87.5% (95% 75.0 to 100.0) "
    "over 10 of 12 answers"
)


def agreed(quality: Quality) -> Evaluation:
    evaluation = simulated.evaluation(names=NAMES, speeds=(1.0, 1.3), levels=(2,))
    own = Quality(
        scored="original", perplexity=61.88, perplexity_original=61.88, greedy_match=1, exact_match=1, token_f1=1
    )
    qualities = (own, quality)
    variants = [
        result.model_copy(update={"quality": each}) for result, each in zip(evaluation.variants, qualities, strict=True)
    ]
    return evaluation.model_copy(update={"variants": variants})


def test_agreement_stands_on_the_page_with_its_number_and_intervals(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", id=studio.evaluation(studio_home, agreed(SCORED)), evaluate_view="Quality")
    (table,) = [result.value for result in at.table if "Answers" in result.value.columns]
    assert list(table["Answers"]) == ["the baseline's own", SURELY]
    assert table["Quality"].iloc[1] == "KL 0.0004, perplexity 61.90 against 61.88"
    at = studio.open_page("evaluate", id="e-1")
    (grid,) = [result.value for result in at.table if "Variant and quality" in result.value.columns]
    assert grid["Variant and quality"].iloc[1].endswith("nats per token")
    assert "KL 0.0004" in grid["Quality in figures"].iloc[1]


def test_the_command_and_the_report_tell_them_too() -> None:
    (row,) = [line for line in summary_text(agreed(AGREED)).splitlines() if "10 of 12" in line]
    assert "95.0% (95% 60.0 to 99.5)  70.0% (95% 39.7 to 89.2)  87.5% (95% 75.0 to 100.0)  10 of 12" in row
    baseline, variant = tables.rows_by_table(agreed(AGREED))["quality"]
    assert (variant["Answers compared"], variant["Greedy match"]) == (10, "95.0% (95% 60.0 to 99.5)")
    assert (baseline["Answers compared"], baseline["Greedy match"]) == (None, "100.0%")
