"""What the report shows beside the document: costs, goodput, single requests, answers, other tools; bounded, and as
JSON too."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest

from backend.domain.evaluation.metrics import steady_window
from backend.domain.evaluation.outcome import SloCheck
from backend.domain.limits.slo import Slo
from backend.domain.load.load import Load
from backend.domain.what_if.costs import WhatIf, operating_point
from backend.domain.what_if.slice_means import with_slice_means
from backend.evaluate.report.content import content, palette
from backend.evaluate.report.report import render
from backend.present.report_content import (
    MOST_POINTS,
    MOST_REQUESTS,
    Extras,
    changed,
    chosen_levels,
    gather,
    make_spread,
    shown_run,
)
from backend.present.words import costs
from backend.worker.measuring.records import MeasuredLevel
from backend.worker.measuring.report_data import InMemorySource
from tests.helpers.imported_files import CONCURRENT, imported
from tests.helpers.report_page import _Page
from tests.helpers.report_records import LINES, record, requests, whole
from tests.simulated import evaluation, level, result

HOSTILE = "<script>window.owned = 1</script>{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def extras() -> Extras:
    return whole()


@pytest.fixture(scope="module")
def page(extras: Extras) -> _Page:
    return _Page(render(evaluation(), extras))


@pytest.mark.parametrize(
    "message",
    [
        "Limits: TTFT p95 at most 200 ms.",
        "An hour costs 2 USD (a list), less 25%.",
        "The hosted API costs 0.1 USD per million input and 0.4 USD per million output tokens, as entered.",
        "A month has 730 hours",
        "SageMaker-compatible (the announcement's formula) 3:1",
        "1,000,000 requests per month",
        "Limits of each request: time to first token at most 60.0 ms.",
        "75.0%",
        "Time to first token of every request",
        "all 64 requests of the first repeat",
        "0 of 128 answers have the same words.",
        "Prompt. prompt ",
        "imported from GuideLLM 0.8.1",
        "imported from vLLM bench (the file names no version)",
        "nothing is tested on it, so there is no verdict",
        "an empty role chunk does not count",
    ],
)
def test_the_report_says(page: _Page, message: str) -> None:
    assert message in page.text


def test_every_chart_of_it_has_words_and_a_figure(page: _Page, extras: Extras) -> None:
    names = [attributes["data-chart"] for _, attributes in page.tags if "data-chart" in attributes]
    charts = content(evaluation(), extras)["charts"]
    assert set(names) == set(charts)
    assert len(names) == 11 + 3 + 4 + 4
    assert set(charts["spread_ttft_ms"]["choices"]) == {"1 stream", "4 streams", "16 streams"}


def test_words_that_differ_are_marked_and_hostile_ones_are_text() -> None:
    document = evaluation(names=["original", "other"], speeds=[1, 2])
    outcome = requests(document, answers=(f"first {HOSTILE}", f"second {HOSTILE}"))
    text = render(document, Extras(requests=outcome))
    assert "<mark>first</mark>" in text and "<mark>second</mark>" in text
    page = _Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 4
    assert HOSTILE in page.text


def test_what_is_not_in_the_document_can_be_saved_as_json(extras: Extras) -> None:
    document = evaluation()
    data = json.loads(base64.b64decode(content(document, extras)["figures_data"]))
    assert data["costs"] == costs.rows(with_slice_means(document), extras.what_if)
    assert data["what_if"]["limits"]["ttft_ms"] == 200
    assert [row["Within the limits"] for row in data["goodput"]] == ["75.0%"] * 4
    assert data["imported"]["figures"][0]["Provenance"] == "imported from GuideLLM 0.8.1"
    assert data["answers"]["w8a8"]["compared"] == 128


def test_the_dark_charts_are_the_light_ones_in_other_colours(extras: Extras) -> None:
    """As the page's script does it: a value under a name that ends in `color` is looked up, nothing else."""
    from backend.present.charts import evaluation as charts
    from backend.present.charts import imported_results as charts_imported
    from backend.present.charts import requests as charts_requests
    from backend.present.charts import tradeoffs

    colours = palette()

    def in_dark(value: Any, name: str) -> Any:
        if isinstance(value, list | tuple):
            return [in_dark(each, name) for each in value]
        if isinstance(value, dict):
            return {own: in_dark(each, own) for own, each in value.items()}
        return colours.get(value, value) if name.lower().endswith("color") else value

    document, outcome = evaluation(names=["#0072b2", "b"], speeds=[1, 2]), extras.requests
    assert outcome is not None
    drawings = [
        lambda theme: charts.latency(document, "ttft_ms", "p50", theme),
        lambda theme: charts.throughput(document, "output_tokens_per_s", theme),
        lambda theme: charts.price(document, "per_million_output", theme),
        lambda theme: tradeoffs.pareto(document, theme),
        lambda theme: tradeoffs.quality_speed(document, None, theme),
        lambda theme: tradeoffs.quality_speed(evaluation(with_quality=False), None, theme),
        lambda theme: charts_requests.sampled(
            "ttft_ms",
            "1 stream",
            outcome.loads[0].spreads["ttft_ms"],
            dict.fromkeys(outcome.loads[0].spreads["ttft_ms"], 0),
            "here",
            theme,
        ),
        lambda theme: charts_requests.timeline("a", "1 stream", outcome.runs["original"].records, "here", theme),
        lambda theme: charts_imported.imported_comparison(document, [imported(CONCURRENT)], "ttft_ms", theme),
    ]
    for draw in drawings:
        assert json.loads(json.dumps(in_dark(draw("light"), ""))) == json.loads(json.dumps(draw("dark")))


def test_a_large_evaluation_stays_a_small_file() -> None:
    levels = [2**n for n in range(6)]
    results = [result(f"variant {n}", [level(c, 1 + n / 50, repeats=3, seed=n) for c in levels]) for n in range(40)]
    document = evaluation().model_copy(update={"variants": results, "comparison": []})
    rows = [
        MeasuredLevel(v, Load("closed", c), [[record(n, n % c, "word " * 2000) for n in range(20 * c)]])
        for v in (0, 1)
        for c in (1, 8, 32)
    ]
    answers = gather(document, InMemorySource([r.name for r in results], rows, LINES, document.options))
    text = render(document, Extras(requests=answers))
    assert len(text.encode()) < 9_000_000


def test_of_a_long_run_whole_streams_are_shown_and_the_steady_window_is_that_of_all() -> None:
    records = [record(n, n % 50) for n in range(2000)]
    run = shown_run(records)
    assert len(run.records) <= MOST_REQUESTS
    assert (run.requests, run.streams) == (2000, 50)
    by_stream = [sum(r.stream == stream for r in run.records) for stream in {r.stream for r in run.records}]
    assert set(by_stream) == {40}
    assert run.window == steady_window(records)
    assert all(not r.text and not r.chunk_times for r in run.records)
    alone = shown_run([record(n, 0) for n in range(2000)])
    assert [r.index for r in alone.records] == list(range(MOST_REQUESTS))


def test_a_spread_keeps_its_ends_and_its_count() -> None:
    spread = make_spread(float(n) for n in range(10_000, 0, -1))
    assert (spread.count, spread.values[0], spread.values[-1]) == (10_000, 1.0, 10_000.0)
    assert len(spread.values) == MOST_POINTS and list(spread.values) == sorted(spread.values)


def test_the_most_different_answers_come_first() -> None:
    outcome = changed([(0, "p", "a b c", "a b c"), (1, None, "a b c", "x y z"), (0, "q", "a b c", "a b x")])
    assert (outcome.compared, outcome.same) == (3, 1)
    assert [pair.prompt for pair in outcome.most] == [None, "q", "p"]


def test_loads_are_the_lowest_the_highest_and_one_between() -> None:
    document = evaluation(levels=(1, 2, 4, 8, 16))
    assert [each.concurrency for each in chosen_levels(document)] == [1, 4, 16]
    assert chosen_levels(document.model_copy(update={"variants": []})) == []


def test_prices_within_limits_are_the_loads_and_blended_ones_need_measured_load() -> None:
    document = evaluation()
    free = costs.rows(document, WhatIf())
    at = operating_point(document.variants[0], Slo())
    assert at is not None
    assert free[0]["USD per million output tokens"] == pytest.approx(1.2 / (at.output_tokens_per_s * 3600 / 1e6))
    assert free[0][f"{costs.FORMULA} 3:1"] is not None
    limited = costs.rows(document, WhatIf(limits=Slo(ttft_ms=150)))
    assert "interpolated between measured levels" in str(limited[0]["Highest load within the limits"])
    assert limited[0][f"{costs.FORMULA} 3:1"] is None
    never = costs.rows(document, WhatIf(limits=Slo(ttft_ms=1)))
    assert never[0]["Highest load within the limits"] == costs.NEVER
    unpriced = costs.rows(evaluation(per_hour=None), WhatIf())
    assert unpriced[0]["USD per million output tokens"] == "no price given"


def test_a_search_shows_which_levels_kept_the_objectives() -> None:
    checked = SloCheck(
        objectives=("ttft_p95<=300ms",), verdict="kept", shares=(0.99,), intervals=((0.95, 1.0),), highest=True
    )
    document = evaluation().model_copy(update={"variants": [result("one", [level(2, slo=checked)])], "comparison": []})
    text = _Page(render(document)).text
    assert "which levels kept the objectives" in text
    assert re.search(r"highest\s*kept\s*99\.0%\s*95\.0% to 100\.0%\s*ttft_p95<=300ms", text)


def test_nothing_measured_has_no_requests() -> None:
    document = evaluation().model_copy(update={"variants": [result("one", [])], "comparison": []})
    assert gather(document, InMemorySource(["one"], [], LINES, document.options)) is None
