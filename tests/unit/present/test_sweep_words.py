"""What a search found, in words: the highest load, the knee, and what stood in the way of more."""

from __future__ import annotations

import pytest

from backend.domain.evaluation.document import Level
from backend.domain.load.load import Load
from backend.evaluate.report.report import render
from backend.present.words.load_search import MEANING, goal, is_search, rows, sentences
from tests.helpers.searches import search, tried
from tests.simulated import evaluation

KL = "KL 0.0004"


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (
            [tried(8, "kept", "knee"), tried(16, "kept", "highest", output_tokens_per_s=812.0), tried(17, "missed")],
            "the highest load with TTFT p95 at most 300 ms is 16 streams, at 812 output tokens/s; "
            "the knee is at 8 streams; 17 streams missed it",
        ),
        (
            [tried(1, "kept", "highest", output_tokens_per_s=0.0), tried(2, "undecided"), tried(4, "missed")],
            "the highest load with TTFT p95 at most 300 ms is 1 stream; no knee among the loads tried; "
            "2 streams was inconclusive",
        ),
        (
            [tried(1, "kept"), tried(2, "kept", "highest", output_tokens_per_s=50.0)],
            "the highest load with TTFT p95 at most 300 ms is 2 streams, at 50.0 output tokens/s; "
            "no knee among the loads tried; no higher load was tried, so more may fit",
        ),
        (
            [tried(32, "kept", "highest", output_tokens_per_s=9.0), tried(64, "kept", client_limited=True)],
            "the highest load with TTFT p95 at most 300 ms is 32 streams, at 9.00 output tokens/s; "
            "no knee among the loads tried; the load generator itself was the limit at 64 streams, so the search "
            "ended there",
        ),
        ([tried(1, "missed")], "no load tried is shown to meet TTFT p95 at most 300 ms; 1 stream missed it"),
        ([], "no load was measured"),
    ],
)
def test_one_sentence_a_variant(levels: list[Level], message: str) -> None:
    first, second = sentences(search(levels, [tried(1, "missed")]))
    assert first.startswith(f"`v0`: {message}; {KL}") and first.endswith(".")
    assert second.startswith("`v1`: no load tried")


def test_a_rate_and_several_limits_are_said_in_their_units() -> None:
    both = ("ttft_p95<=0.3s", "latency_p99<=2s")
    at_rate = tried(3, "kept", "highest", objectives=both, load=Load("rate", 7.5))
    assert (
        "TTFT p95 at most 300 ms and client latency p99 at most 2000 ms is 7.5 requests/s"
        in sentences(search([at_rate]))[0]
    )
    assert goal(("itl_p90<=12.5ms",)) == "TPOT p90 at most 12.5 ms"


def test_levels_that_were_asked_for_are_no_search() -> None:
    assert not is_search(evaluation()) and rows(evaluation()) == [] and sentences(evaluation()) == []


def test_the_report_says_it_and_no_verdict_between_searches() -> None:
    match = search([tried(8, "kept", "highest", "knee"), tried(9, "missed")], [tried(8, "missed")])
    text = render(match)
    assert "the highest load with TTFT p95 at most 300 ms is 8 streams" in text
    assert MEANING in text and "Factors are of output tokens/s" not in text
    assert [(row["Load"], row["Mark"]) for row in rows(match)] == [
        ("8 streams", "highest, knee"),
        ("9 streams", ""),
        ("8 streams", ""),
    ]
