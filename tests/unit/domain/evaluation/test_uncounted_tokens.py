"""An endpoint that does not tell its tokens: every place that shows a throughput says so, and none shows a 0."""

from __future__ import annotations

import csv
import io
from html import unescape

import pytest

from app.compare import slo_sliders as compare_slo
from app.results import measurement_conditions
from backend.cli.text.levels import levels_table
from backend.domain.evaluation import energy
from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.document import Evaluation, Level
from backend.domain.evaluation.prices import Pricing
from backend.domain.evaluation.resource_use import Energy
from backend.domain.evaluation.soundness import invalidity_reasons, level_validity
from backend.domain.limits import slo
from backend.domain.limits.chart_selection import pareto_points
from backend.domain.limits.slo import Slo
from backend.domain.load import sweep
from backend.domain.load.load import Load
from backend.domain.what_if import costs
from backend.domain.what_if.costs import ApiPrice, WhatIf
from backend.evaluate.report.content import verdicts
from backend.present.charts import alt_text, tradeoffs
from backend.present.charts import evaluation as charts
from backend.present.preset_figures import measurement
from backend.present.tables import evaluation as tables
from backend.present.words import costs as cost_words
from backend.present.words.verdicts import describe_comparison, grid_rows, level_sentence
from tests.simulated import evaluation, level, quality, result, uncounted

SILENT = uncounted(level(4, 1.5, seed=1, requests_per_s=1.5))
SOME = uncounted(level(4, 1.5, seed=1), answers=3)


def document(*levels: Level) -> Evaluation:
    """A counted baseline beside a variant with these levels."""
    first = evaluation(levels=[level.concurrency for level in levels])
    variants = [first.variants[0], result("silent", levels, quality(0.0004))]
    return first.model_copy(update={"variants": variants, "comparison": compare(variants)})


@pytest.mark.parametrize(("created", "count"), [(SILENT, "160 of 160"), (SOME, "3 of 160")])
def test_validity_says_how_many_answers_came_without_a_count(created: Level, count: str) -> None:
    words = f"{count} answers came without a token count, so tokens/s and prices are not known"
    assert (level_validity(created), invalidity_reasons(created)) == ("in part", [words])
    assert [row["Valid"] for row in measurement_conditions.validity_rows(document(created))] == ["yes", "in part"]
    assert (level_validity(level(4)), invalidity_reasons(level(4))) == ("yes", [])
    limited = created.model_copy(update={"client_limited": True})
    assert level_validity(limited) == "no" and len(invalidity_reasons(limited)) == 2


@pytest.mark.parametrize("created", [SILENT, SOME])
def test_no_chart_has_a_mark_for_it_and_each_names_the_variant(created: Level) -> None:
    shown = document(created)
    for metric in ("output_tokens_per_s", "per_million_output"):
        figure = charts.throughput(shown, metric) if metric in charts.THROUGHPUTS else charts.price(shown, metric)
        assert [row["Series"] for row in alt_text.rows(figure)] == ["original"]
        assert "Tokens not counted: silent" in alt_text.alt(figure)
    assert {shown.variants[point.variant].name for point in pareto_points(shown)} == {"original"}
    for figure in (tradeoffs.quality_speed(shown), tradeoffs.pareto(shown)):
        assert alt_text.alt(figure).endswith("; Tokens not counted: silent.")
    assert "Tokens" not in alt_text.alt(charts.latency(shown))
    assert "answers came without a token count" in charts.latency(shown)["data"][1]["hovertext"][0]


def test_a_variant_with_tokens_at_one_level_is_drawn_there_and_the_other_named() -> None:
    shown = document(level(1), SILENT)
    figure = charts.throughput(shown)
    assert [len(trace["x"]) for trace in figure["data"] if "marker" in trace] == [2, 1]
    assert "Tokens not counted: silent (1 of 2 levels)" in alt_text.alt(figure)
    alone = shown.model_copy(update={"variants": [result("silent", [SILENT])]})
    assert alt_text.alt(charts.throughput(alone)).endswith("Tokens not counted: silent.")
    assert charts.throughput(document(level(4)))["layout"]["annotations"] == []


def test_many_names_end_early_on_the_chart_and_are_whole_in_its_words() -> None:
    names = [f"<{number}> an endpoint & more" for number in range(4)]
    shown = document(SILENT)
    shown = shown.model_copy(update={"variants": [shown.variants[0], *(result(name, [SILENT]) for name in names)]})
    figure = charts.throughput(shown)
    note = figure["layout"]["annotations"][0]["text"]
    assert note.endswith("…") and len(unescape(note)) == 50 and "<0>" not in note
    assert all(name in alt_text.alt(figure) for name in names)


def test_tables_and_files_leave_the_cell_empty() -> None:
    row = list(csv.DictReader(io.StringIO(tables.csv(document(SILENT)), newline="")))[1]
    assert (row["Output tokens/sec (count)"], row["Requests/s"]) == ("", "1.5")
    assert float(row["Time to first token (ms)"]) > 0
    table = levels_table([("silent", SOME.model_dump(mode="json"))])
    assert "3 answers came without a token count, so tokens/s and prices are not known" in table
    spent = SOME.model_copy(update={"energy": Energy(joules={"package-0": 10.0}, output_tokens=100)})
    assert (
        energy.joules_per_token(spent) is energy.energy_rows(document(spent))[0]["Energy per output token (J)"] is None
    )


@pytest.mark.parametrize("created", [SILENT, SOME])
def test_there_is_no_verdict_on_tokens_with_the_reason_and_one_on_the_first_token(created: Level) -> None:
    rows = {row.metric: row for row in document(created).comparison}
    on_tokens = rows["output_tokens_per_s"]
    assert (on_tokens.ratio, on_tokens.p_value) == (None, None)
    assert "of `silent` had no token count" in describe_comparison(on_tokens)
    assert rows["ttft_ms_p50"].p_value is not None
    assert describe_comparison(on_tokens) in level_sentence(list(rows.values()), None)
    turned = compare([result("silent", [created]), result("counted", [level(4)])])
    assert "of `silent` had no token count" in next(
        describe_comparison(row) for row in turned if row.metric == "output_tokens_per_s"
    )


def test_the_grid_and_the_reports_table_give_requests_instead() -> None:
    shown = document(SILENT)
    assert grid_rows(shown)[1].cells[Load("closed", 4)].words == "no verdict, tokens not counted"
    assert verdicts(shown)["table"]["rows"][1]["cells"][1].startswith("no verdict, tokens not counted; but TTFT")
    alone = shown.model_copy(update={"comparison": []})
    assert grid_rows(alone)[1].cells[Load("closed", 4)].words == "1.50 requests/s, tokens not counted"
    assert "1.50 requests/s, tokens not counted" in verdicts(alone)["table"]["rows"][1]["cells"]


def test_costs_in_tokens_are_not_told_and_a_month_of_requests_is() -> None:
    what_if = WhatIf(per_hour=2.0, api=ApiPrice(per_million_input=1, per_million_output=1), requests_a_month=1000)
    row = cost_words.rows(document(SILENT), what_if)[1]
    for name in ("Output tokens/s", "USD per million output tokens", "Cheaper than the hosted API from"):
        assert row[name] == "tokens not counted"
    assert "1 machine" in str(row["1,000 requests per month"])
    level_price = costs.level_price(Pricing(per_hour=1), SOME)
    assert level_price is not None and level_price.per_million_output is level_price.blended_sagemaker is None


def test_between_two_levels_a_rate_needs_both_and_at_one_only_its_own() -> None:
    both = result("v", [level(1), SOME])
    assert costs.operating_point(both, Slo()).output_tokens_per_s is None
    first = both.levels[0]
    assert costs.operating_point(both, Slo(ttft_ms=first.ttft_ms.p95)).output_tokens_per_s == first.output_tokens_per_s
    between = costs.operating_point(both, Slo(ttft_ms=first.ttft_ms.p95 * 1.2))
    assert between.interpolated and between.output_tokens_per_s is None and between.requests_per_s > 0


def test_a_counted_level_within_limits_comes_first_else_the_one_with_most_requests() -> None:
    slow, fast = (uncounted(level(c, requests_per_s=r)) for c, r in ((1, 1.0), (16, 9.0)))
    assert slo.best_levels(document(slow, fast), Slo())[1].level.concurrency == 16
    levels = slo.best_levels(document(slow, level(4), fast), Slo())
    assert levels[1].level.concurrency == 4
    rows = compare_slo.rows(slo.best_levels(document(slow, fast), Slo()))
    assert rows[1]["Output tokens/s"] == "not measured"
    assert rows[1]["Price per million output tokens (USD)"] == "tokens not counted"
    pareto = tradeoffs.pareto(document(SILENT))
    assert len(compare_slo.with_rings(pareto, slo.best_levels(document(SILENT), Slo()), "light")["data"][-1]["x"]) == 1


def test_a_preset_and_a_knee_do_without_such_levels() -> None:
    shown = document(level(1), SILENT)
    assert measurement(shown, shown.variants[1], "e").best.concurrency == 1
    alone = document(SILENT)
    assert measurement(alone, alone.variants[1], "e").best is None
    points = [(1, 10.0), (2, 20.0), (4, 21.0), (8, 22.0)]
    assert sweep.knee([*points, (16, None)]) == sweep.knee(points) == 2
