"""The tables and CSV files behind charts: every point once, and no formula that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.evaluation.document import Evaluation
from backend.present.charts import alt_text, tradeoffs
from backend.present.charts import evaluation as charts
from backend.present.charts.theme import layout, text
from backend.present.tables import evaluation as tables
from tests.helpers.chart_figures import DRAW, marked
from tests.simulated import evaluation, level, result

PAGE = [
    "Concurrency",
    "Time to first token (ms)",
    "Inter-token latency (ms)",
    "Client latency (ms)",
    "Input tokens/sec (count)",
    "Output tokens/sec (count)",
    "Client invocations (count)",
    "Client invocation errors (count)",
    "Tokenizer failed (count)",
    "Empty inference response (count)",
    "Input tokens/sec/req (count)",
    "Output tokens/sec/req (count)",
    "Input tokens (count)",
    "Output tokens (count)",
    "Price per million input tokens (USD)",
    "Price per million output tokens (USD)",
]
NAMES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=30)
VALUES = st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture(scope="module")
def measured() -> Evaluation:
    return evaluation()


def test_the_rows_of_a_chart_are_its_points_with_interval_validity_and_provenance() -> None:
    slow = level(16, client_limited=True)
    document = evaluation().model_copy(update={"variants": [result("original", [level(1), level(4), slow])]})
    rows = alt_text.rows(charts.throughput(document))
    assert [(row["Series"], row["Concurrency (streams)"], row["Valid"]) for row in rows] == [
        ("original", 1, "yes"),
        ("original", 4, "yes"),
        ("original", 16, "no"),
    ]
    title = "Output tokens/s, all streams"
    output_tokens_per_s = [block["output_tokens_per_s"] for block in slow.blocks]
    assert rows[2][title] == slow.output_tokens_per_s
    assert rows[2][f"{title}, 95% from"] < fmean(output_tokens_per_s) < rows[2][f"{title}, 95% to"]
    assert str(rows[2]["Provenance"]).startswith(
        "measured 2026-01-02T03:04:05+00:00 on Simulated CPU, 2 cores with whetstone 0.1.0"
    )


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_every_charts_csv_has_each_point_once_under_axis_titles(measured: Evaluation, draw: Any) -> None:
    figure = draw(measured)
    read = list(csv.DictReader(io.StringIO(alt_text.csv(figure), newline="")))
    assert len(read) == sum(len(trace["x"]) for trace in marked(figure)) > 0
    for axis in ("x", "y"):
        drawn = [value for trace in marked(figure) for value in trace[axis]]
        assert [float(row[figure["layout"][f"{axis}axis"]["title"]["text"]]) for row in read] == drawn


def test_the_points_of_the_tradeoffs_keep_concurrency_and_confidence(measured: Evaluation) -> None:
    rows = [row for row in alt_text.rows(tradeoffs.pareto(measured)) if row["Series"] == "original"]
    assert {row["Concurrency (streams)"] for row in rows} == {"1", "4", "16"}
    quality = measured.variants[1].quality
    assert quality and quality.kl_ci95
    row = alt_text.rows(tradeoffs.quality_speed(measured))[1]
    assert row["Mean KL divergence (nats per token), 95% from"] == pytest.approx(quality.kl_ci95[0])


def test_a_chart_without_figures_has_no_rows_and_an_empty_file() -> None:
    nothing = charts.price(evaluation(per_hour=None))
    assert alt_text.rows(nothing) == []
    assert alt_text.csv(nothing).strip() == ""


@given(
    NAMES | st.sampled_from(["=1+1", "+1", "-1", "@x", "\t=1", 'a,"b"\r\nc']),
    st.lists(st.tuples(VALUES, VALUES), min_size=1),
)
def test_a_charts_csv_reads_back_and_holds_no_formula(name: str, points: list[tuple[float, float]]) -> None:
    trace: dict[str, Any] = {"customdata": [text(name)] * len(points), "marker": {"symbol": "circle"}}
    trace |= {"x": [x for x, _ in points], "y": [y for _, y in points]}
    drawn = layout("Any", {"label": "x (s)"}, {"label": "y (ms)"}, "light", provenance="here")
    header, *read = csv.reader(io.StringIO(alt_text.csv({"data": [trace], "layout": drawn}), newline=""))
    assert header == ["Series", "x (s)", "y (ms)", "Provenance"]
    assert [(float(row[1]), float(row[2])) for row in read] == points
    for row in read:
        assert row[0].removeprefix("'") == name.removeprefix("'")
        assert not row[0].startswith(("=", "+", "-", "@", "\t", "\r"))


def test_the_file_of_a_chart_is_named_after_it(measured: Evaluation) -> None:
    assert alt_text.file_name(charts.latency(measured)) == "time-to-first-token-p50-ms"
    assert alt_text.file_name({"data": [], "layout": {"title": {"text": "…"}}}) == "chart"


def test_the_table_has_every_metric_of_the_documentation_page_under_its_own_name(measured: Evaluation) -> None:
    rows = tables.table(measured)
    assert list(rows[0]) == ["Variant", *PAGE]
    assert [(row["Variant"], row["Concurrency"]) for row in rows[:4]] == [
        ("original", 1),
        ("original", 4),
        ("original", 16),
        ("w8a8", 1),
    ]
    first = measured.variants[0].levels[0]
    assert first.ttft_ms is not None
    assert rows[0]["Time to first token (ms)"] == first.ttft_ms.p50
    assert tables.table(measured, "p99")[0]["Time to first token (ms)"] == first.ttft_ms.p99
    assert rows[0]["Client invocations (count)"] == first.invocations


def test_what_was_not_measured_is_none_in_the_table_and_empty_in_csv() -> None:
    document = evaluation(per_hour=None)
    row = tables.table(document)[0]
    assert row["Price per million input tokens (USD)"] is None
    (read, *_) = csv.DictReader(io.StringIO(tables.csv(document)))
    assert read["Price per million input tokens (USD)"] == ""
    assert float(read["Time to first token (ms)"]) == row["Time to first token (ms)"]


def test_csv_reads_back_names_with_commas_quotes_and_lines_and_runs_no_formula() -> None:
    names = ['a,"b"\nc', "=HYPERLINK(1)"]
    read = list(csv.DictReader(io.StringIO(tables.csv(evaluation(names=names, speeds=[1, 2], levels=[4])))))
    assert [row["Variant"] for row in read] == [names[0], "'=HYPERLINK(1)"]


def test_the_distribution_table_leaves_out_latencies_that_nobody_measured() -> None:
    document = evaluation().model_copy(update={"variants": [result("one", [level(1, ttft_ms=None)])]})
    assert [row["Latency (ms)"] for row in tables.distribution_table(document)] == [
        "Inter-token latency",
        "Client latency",
        "Content latency",
        "Chunk gap",
    ]
