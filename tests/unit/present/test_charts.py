"""Charts as data: every point of the evaluation is there with its words, whatever is missing or hostile."""

from __future__ import annotations

import json
import math
import re
import tomllib
from html import unescape
from itertools import pairwise
from statistics import stdev
from typing import Any

import plotly.graph_objects as graph
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import charts as screen
from backend.domain.evaluation.document import Evaluation
from backend.domain.figures import figure as number
from backend.domain.limits.chart_selection import MOST_LINES, choose_foremost, pareto_points, select_variants
from backend.domain.maths import student_t
from backend.present.charts import alt_text, tradeoffs
from backend.present.charts import evaluation as charts
from backend.present.charts.layer_errors import layer_errors
from backend.present.charts.markers import LEGEND_WIDTH, WHISKERS, places, style_indices
from backend.present.charts.theme import COLOURS, Figure, concurrency_axis, style
from backend.settings import CHECKOUT
from tests.helpers.chart_figures import DRAW, marked
from tests.simulated import evaluation, level, result

LIVE = [{"variant": "a", "concurrency": 1, "output_tokens_per_s": 3.0}]
LAYERS = [
    {"name": f"model.layers.{at}.mlp.up_proj", "relative_error": 0.01, "rtn_relative_error": 0.02} for at in range(3)
]


@pytest.fixture(scope="module")
def measured() -> Evaluation:
    return evaluation()


@pytest.mark.parametrize("metric", list(charts.LATENCIES))
@pytest.mark.parametrize("percentile", charts.PERCENTILES)
def test_a_latency_chart_draws_every_level_at_the_percentile_asked(
    measured: Evaluation, metric: str, percentile: str
) -> None:
    traces = marked(charts.latency(measured, metric, percentile))
    for trace, variant in zip(traces, measured.variants, strict=True):
        assert trace["x"] == [level.concurrency for level in variant.levels]
        assert trace["y"] == [getattr(getattr(level, metric), percentile) for level in variant.levels]


def test_throughput_and_price_charts_draw_the_levels_figures(measured: Evaluation) -> None:
    for metric in charts.THROUGHPUTS:
        assert marked(charts.throughput(measured, metric))[1]["y"] == [
            getattr(x, metric) for x in measured.variants[1].levels
        ]
    for metric in ("per_million_input", "per_million_output", "per_million_total", "blended_sagemaker"):
        assert marked(charts.price(measured, metric))[2]["y"] == [
            getattr(x.price, metric) for x in measured.variants[2].levels
        ]


def test_whiskers_are_95_percent_intervals_on_every_chart_and_the_legend_says_so(measured: Evaluation) -> None:
    trace = marked(charts.throughput(measured))[0]
    logs = [math.log(block["output_tokens_per_s"]) for block in measured.variants[0].levels[0].blocks]
    factor = math.exp(student_t.quantile(0.975, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs)))
    assert trace["error_y"]["array"][0] == pytest.approx(trace["y"][0] * (factor - 1))
    assert trace["error_y"]["arrayminus"][0] == pytest.approx(trace["y"][0] * (1 - 1 / factor))
    drawn = [charts.throughput(measured), charts.latency(measured)]
    drawn += [charts.price(measured, metric) for metric in charts.PRICES if metric != "blended"]  # has none here
    for figure in (*drawn, tradeoffs.pareto(measured), tradeoffs.quality_speed(measured)):
        assert any("array" in trace["error_y"] for trace in marked(figure))
        assert figure["data"][-1]["name"] == "whiskers: 95% interval"
        assert figure["layout"]["meta"]["interval"] == ["95% from", "95% to"]
    # A price is the hour by the throughput: its interval is as wide, at any price of the hour.
    price = marked(charts.price(measured))[0]
    assert price["error_y"]["array"][0] == pytest.approx(price["y"][0] * (factor - 1))
    assert all("array" in trace["error_x"] for trace in marked(tradeoffs.pareto(measured)))
    few = measured.model_copy(update={"variants": [result("original", [level(1, repeats=2), level(4, repeats=2)])]})
    assert marked(charts.throughput(few))[0]["error_y"] == {"visible": False}
    assert charts.throughput(few)["data"] == marked(charts.throughput(few))


def test_a_variant_has_one_colour_in_any_company_and_the_original_is_black(measured: Evaluation) -> None:
    original, w8a8, draft, both = measured.variants
    whole = places(measured)
    alone = measured.model_copy(update={"variants": [original, both, w8a8], "comparison": []})
    assert whole["original"] == 0
    assert places(alone) == {name: whole[name] for name in ("original", both.name, "w8a8")}
    assert (style(0, "light").colour, style(0, "dark").colour) == ("#111111", "#f5f5f5")
    for figure in (charts.throughput(alone), tradeoffs.pareto(alone)):
        drawn = {trace["customdata"][0]: trace["marker"]["symbol"][0] for trace in marked(figure)}
        assert drawn == {name: style(whole[name], "light").symbol for name in drawn}
    assert whole["draft"] not in places(alone).values() and draft.name == "draft"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_variant_has_one_colour_on_every_chart_and_the_original_is_the_ink(theme: Any) -> None:
    """Also in another order, and named by its steps as Build does; black is white on the dark theme."""
    names = ("original", "w8a8", "awq", "draft", "zeta", "mine")
    first = evaluation(names, [1 + number / 10 for number in range(len(names))])
    turned = evaluation((names[0], *reversed(names[1:])), [1 + number / 10 for number in range(len(names))])
    drawn: dict[str, set[str]] = {}
    for document in (first, turned):
        for draw in DRAW.values():
            for trace in marked(draw(document, theme=theme)):
                colour = trace["marker"]["color"]
                strong = (
                    {colour} if isinstance(colour, str) else {each for each in colour if not each.startswith("rgba")}
                )
                drawn.setdefault(trace["customdata"][0], set()).update(strong)
    assert drawn["original"] == {COLOURS[theme].series[0]} and all(len(colours) == 1 for colours in drawn.values())
    assert len({colour for colours in drawn.values() for colour in colours}) == len(names)
    assert style_indices(["", "W8A8", "AWQ 4-bit", "n-gram"]) == style_indices(["", "w8a8", "awq", "ngram"])


def test_equal_names_share_a_colour_and_differ_in_shape() -> None:
    styles = [style(place, "light") for place in style_indices(["", "w8a8", "", "w8a8", "mine", "mine too"])]
    assert styles[0].colour == styles[2].colour and styles[0].symbol != styles[2].symbol
    assert styles[1].colour == styles[3].colour and styles[1].symbol != styles[3].symbol
    assert len({check.colour for check in styles}) == 4


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_no_line_of_a_hover_is_wider_than_half_a_page_has_room_for(measured: Evaluation, draw: Any) -> None:
    many = {f"library-{number}": "1.2.3+cpu" for number in range(9)}
    document = measured.model_copy(
        update={"versions": many, "variants": [result("long name " * 20, measured.variants[1].levels)]}
    )
    for trace in marked(draw(document)):
        assert (
            max(len(line) for message in trace["hovertext"] for line in re.sub("</?b>", "", message).split("<br>"))
            <= 60
        )


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_figure_is_plain_json_with_units_provenance_and_words(
    measured: Evaluation, draw: Any, theme: Any
) -> None:
    figure = draw(measured, theme=theme)
    assert json.loads(json.dumps(figure, allow_nan=False)) == figure
    assert figure["layout"]["paper_bgcolor"] == COLOURS[theme].panel
    for axis in ("xaxis", "yaxis"):
        assert re.search(r"streams|ms|tokens|nats|USD", figure["layout"][axis]["title"]["text"])
    for trace in marked(figure):
        assert len(trace["hovertext"]) == len(trace["x"])
        for message in trace["hovertext"]:
            assert "measured 2026-01-02T03:04:05+00:00<br>on Simulated CPU, 2 cores<br>with whetstone 0.1.0" in message
    for name in ("original", "w8a8", "draft", "w8a8-draft"):
        assert f"{name}: " in alt_text.alt(figure)


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_plotly_accepts_every_figure_and_an_unchecked_one_is_the_same(
    measured: Evaluation, draw: Any, theme: Any
) -> None:
    figure = draw(measured, theme=theme)
    assert _sent(graph.Figure(figure)) == _sent(screen.unvalidated(figure))


def _sent(figure: graph.Figure) -> dict[str, Any]:
    """What the browser gets, but for an empty template's default and an empty list that a check leaves out."""
    sent: dict[str, Any] = json.loads(figure.to_json())
    return {
        **sent,
        "layout": {name: value for name, value in sent["layout"].items() if name != "template" and value != []},
    }


@pytest.mark.parametrize(
    "figure",
    [screen.live_throughput(LIVE, ["a"]), screen.live_throughput([], []), layer_errors(LAYERS), layer_errors([])],
)
def test_plotly_accepts_the_live_chart_and_the_layers(figure: Figure) -> None:
    assert _sent(graph.Figure(figure)) == _sent(screen.unvalidated(figure))
    assert alt_text.alt(figure)


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_a_figure_without_figures_says_why(draw: Any) -> None:
    bare = level(1, ttft_ms=None, output_tokens_per_s=None, output_tokens_per_s_per_request=None)
    empty = evaluation(per_hour=None, with_quality=False).model_copy(update={"variants": [result("only", [bare])]})
    nothing = empty.model_copy(update={"variants": []})
    for document in (empty, nothing):
        figure = draw(document)
        assert figure["data"] == []
        assert re.search(r"No price was given|not measured|No request|No throughput", alt_text.alt(figure))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_theme_of_the_pages_has_the_colours_of_the_charts(theme: Any) -> None:
    pages = tomllib.loads((CHECKOUT / ".streamlit" / "config.toml").read_text())["theme"]
    assert tuple(pages[theme]["chartCategoricalColors"]) == COLOURS[theme].series


def test_series_differ_in_more_than_colour() -> None:
    style_indices = [style(index, "light") for index in range(56)]
    assert len(set(style_indices)) == 56
    assert len({check.symbol for check in style_indices[:6]}) == len({check.dash for check in style_indices[:6]}) == 6


def test_a_point_that_the_client_held_back_is_hollow_said_and_never_on_the_front() -> None:
    fast = result("fast", [level(4, 9.0, client_limited=True)])
    document = evaluation().model_copy(update={"variants": [result("original", [level(4)]), fast]})
    trace = marked(charts.throughput(document))[1]
    assert trace["marker"]["symbol"][0].endswith("-open")
    assert "limited by the load generator" in trace["hovertext"][0]
    assert [point.on_front for point in pareto_points(document)] == [True, False]


def test_a_level_with_many_errors_is_hollow_never_on_the_front_and_its_mark_says_so() -> None:
    failing = level(4, 9.0, invocations=100, invocation_errors=2)
    document = evaluation().model_copy(
        update={"variants": [result("original", [level(4)]), result("failing", [failing])]}
    )
    assert [point.on_front for point in pareto_points(document)] == [True, False]
    trace = marked(tradeoffs.pareto(document))[1]
    assert trace["marker"]["symbol"][0].endswith("-open")
    assert "2 of 100 requests failed" in trace["hovertext"][0]


def test_words_say_axes_ranges_and_the_best_where_all_have_a_point(measured: Evaluation) -> None:
    message = alt_text.alt(charts.throughput(measured))
    fastest = measured.variants[3].levels[-1].output_tokens_per_s
    assert "Across: Concurrency (streams), 1 to 16. Up: Output tokens/s, all streams." in message
    assert re.search(r"w8a8: 3 points from \S+ at concurrency 1 to \S+ at concurrency 16", message)
    assert message.endswith(f"Higher is better: at concurrency 16 w8a8-draft is highest, {number(fastest)}.")
    assert "Lower is better: at concurrency 16 w8a8-draft is lowest" in alt_text.alt(charts.latency(measured))
    assert "is better" not in alt_text.alt(tradeoffs.pareto(measured))
    assert "at concurrency 16" in alt_text.alt(tradeoffs.pareto(measured))


def test_words_let_no_level_lead_that_is_not_the_servers_figure() -> None:
    fast = result("fast", [level(1, 2.0), level(4, 9.0, client_limited=True)])
    document = evaluation().model_copy(update={"variants": [result("original", [level(1), level(4)]), fast]})
    message = alt_text.alt(charts.throughput(document))
    assert "fast: 2 points, 1 of them not the server's figures from" in message
    assert "at concurrency 1 fast is highest" in message


def test_a_ring_around_marks_is_said_and_adds_no_point_to_the_file(measured: Evaluation) -> None:
    figure = tradeoffs.pareto(measured)
    mark = figure["data"][1]
    ring = {
        "x": mark["x"][:1],
        "y": mark["y"][:1],
        "hoverinfo": "skip",
        "customdata": ["ring"],
        "marker": {"symbol": "circle-open"},
    }
    ringed = {**figure, "data": [*figure["data"], ring]}
    assert alt_text.rows(ringed) == alt_text.rows(figure)
    assert "; ring: " in alt_text.alt(ringed)
    assert "not the server's" not in alt_text.alt(ringed)


def test_a_variant_without_quality_is_named_beside_the_quality_chart() -> None:
    document = evaluation()
    variants = [document.variants[0], document.variants[1].model_copy(update={"quality": None})]
    assert alt_text.alt(tradeoffs.quality_speed(document.model_copy(update={"variants": variants}))).endswith(
        "; Quality not measured: w8a8."
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=12))
def test_the_pareto_front_is_what_no_other_level_beats(figures: list[tuple[int, int]]) -> None:
    base = level(1)
    copies = [
        base.model_copy(
            update={
                "concurrency": i,
                "output_tokens_per_s": float(total),
                "output_tokens_per_s_per_request": float(user),
            }
        )
        for i, (total, user) in enumerate(figures, 1)
    ]
    document = evaluation(names=["one"], speeds=[1.0]).model_copy(update={"variants": [result("one", copies)]})
    front = {(p.total, p.per_user) for p in pareto_points(document) if p.on_front}
    beaten = {b for b in figures if any(a != b and a[0] >= b[0] and a[1] >= b[1] for a in figures)}
    assert front == set(figures) - beaten
    line = tradeoffs.pareto(document)["data"][0]
    assert line["x"] == sorted(line["x"])
    assert line["y"] == sorted(line["y"], reverse=True)


def test_hostile_names_are_inert_in_every_text_that_plotly_reads() -> None:
    name = "<a href='javascript:alert(1)'>%{x}</a>&<b>"
    document = evaluation(names=["original", name], speeds=[1, 2])
    for draw in DRAW.values():
        figure = draw(document)
        shown = json.dumps(figure)
        assert "<a " not in shown
        assert "hovertemplate" not in shown
        assert name in alt_text.alt(figure)
        assert all(len(unescape(trace["name"])) <= LEGEND_WIDTH for trace in figure["data"])


def test_marks_off_the_front_are_pale_and_the_legends_first_mark_is_on_it(measured: Evaluation) -> None:
    points = pareto_points(measured)
    for index, trace in enumerate(marked(tradeoffs.pareto(measured))):
        on_front = sorted((point.on_front for point in points if point.variant == index), reverse=True)
        assert [not colour.startswith("rgba") for colour in trace["marker"]["color"]] == on_front


def test_of_many_variants_the_foremost_have_looks_and_the_others_are_one_series() -> None:
    names = [f"v{number:02d}" for number in range(20)]
    document = evaluation(names, [1 + number / 10 for number in range(20)])
    shown = choose_foremost(document)
    assert len(shown) == MOST_LINES and shown[0] == "v00" and shown[-1] == "v19"
    figure = tradeoffs.pareto(document, shown=shown)
    assert [trace["name"] for trace in figure["data"]] == ["Pareto front", "12 others", *shown, WHISKERS]
    assert len(alt_text.rows(figure)) == 20 * len(document.variants[0].levels)
    assert "12 others: " in alt_text.alt(figure)
    drawn = select_variants(document, shown)
    assert {row.variant for row in drawn.comparison} == set(shown[1:])
    assert select_variants(document, names) is document


def test_ticks_of_many_levels_are_far_enough_apart_and_those_of_few_all_there() -> None:
    few, many = concurrency_axis([1, 4, 5, 6]), concurrency_axis(range(1, 101))
    assert few["tickvals"] == [1, 4, 5, 6]
    gaps = [math.log10(b / a) for a, b in pairwise(many["tickvals"])]
    assert min(gaps) >= (many["range"][1] - many["range"][0]) / 16 and len(gaps) > 6
    assert many["ticktext"] == [str(level) for level in many["tickvals"]]
