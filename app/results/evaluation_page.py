"""An evaluation on a screen: verdict, tiles and charts, then tabs of speed, price, quality, requests and conditions."""

from __future__ import annotations

from typing import Any, NamedTuple

import streamlit as st

from app import charts, navigation, next_steps
from app.compare import what_if_url
from app.evaluate import form
from app.formatting import message, plain
from app.load_bar import address
from app.navigation import page_key
from app.overview import caveats, tiles
from app.portfolio import panel
from app.results import (
    configuration_check,
    costs,
    figure_tables,
    goodput,
    imported_results,
    measurement_conditions,
    report_download,
    requests,
    speculation,
    variant_choice,
    verdict_panel,
)
from backend.domain.evaluation.document import Evaluation, Quality, VariantResult
from backend.domain.figures import figure
from backend.domain.limits.chart_selection import select_variants
from backend.domain.what_if.costs import WhatIf
from backend.present import evaluation_top, load_words
from backend.present.charts import evaluation as drawn
from backend.present.charts import resources, tradeoffs
from backend.present.source_names import evaluation_name
from backend.present.tables import tasks
from backend.present.tables.evaluation import csv
from backend.present.words import engines, headline, quality_loss
from backend.present.words.measurements import answers_agreement, quality_scores, scored
from backend.service import Workspace
from backend.service.evaluations.evaluations import EvaluationView

FIRST, HALF = 320, 420
"""Heights in pixels of the first charts, and of those below that share a row."""
TABS = ("Speed", "Price", "Quality", "Speculation", "Requests", "Conditions")


class ActionPlaces(NamedTuple):
    """Containers in the row of the title: for the button that measures more, the link to Compare, and the menu."""

    more: Any
    compare: Any
    actions: Any


def show(opened: Workspace, view: EvaluationView) -> None:
    """Draw the evaluation: its top, which answers on first sight, then tabs.

    Charts and sentences are of the selected variants, tables of all. Only the open tab is drawn; the price fields are
    always there, since the report uses them.
    """
    # 1. The top, whose charts and actions are filled in below.
    document = view.document
    places = draw_top(view)
    first_charts = st.container()
    # 2. The price, which the downloads need.
    shown = variant_choice.choose(document, "shown")
    names = [result.name for result in shown.variants]
    speed, price, quality, guessing, single, under = st.tabs(TABS, key=page_key("view"), bind="query-params")
    with price:
        what_if, priced = costs.show_prices(opened, document, names, in_sight=bool(price.open))
    with first_charts:
        draw_first_charts(document, select_variants(priced, names))
    _fill_actions(opened, view, places, what_if, priced)
    # 3. The open tab.
    if speed.open:
        with speed:
            draw_speed(opened, view, shown, priced)
    if quality.open:
        with quality:
            draw_quality(select_variants(priced, names))
            draw_tasks(document)
    if guessing.open:
        with guessing:
            speculation.show(opened, select_variants(priced, names))
    if single.open:
        with single:
            requests.show(view, names)
    if under.open:
        with under:
            configuration_check.show_line(document)
            measurement_conditions.show_provenance(document)
            measurement_conditions.show(document)
    _show_next_steps(opened, document)


def draw_top(view: EvaluationView) -> ActionPlaces:
    """Draw title, verdict and tiles. Return the places of the actions, which depend on what is chosen below."""
    # 1. The title and what is beside it.
    document = view.document
    top = evaluation_top.read_top(document)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title(plain(evaluation_name(view.title)), width="stretch", help=f"{plain(view.title)} ({view.id})")
        caveats.show(top.caveats)
        more, compare = st.container(width="content"), st.container(width="content")
        actions = st.popover("More", icon=":material/more_horiz:", key=page_key("actions"), width="content")
    # 2. The verdict, and a tile per variant.
    verdict_panel.show_verdict(document)
    tiles.show(top.tiles)
    if top.without_tile:
        st.caption(top.without_tile)
    return ActionPlaces(more, compare, actions)


def draw_first_charts(document: Evaluation, shown: Evaluation) -> None:
    """Draw the trade-off of all variants, `shown` ones in colour, and beside it their quality where it was measured."""
    first = evaluation_top.first_charts(document, [result.name for result in shown.variants], charts.theme())
    left, right = st.columns([3, 2]) if first.quality else (st.container(), None)
    with left:
        charts.show(charts.with_height(first.front, FIRST), "evaluation-pareto")
    if right is not None and first.quality:
        with right:
            charts.show(charts.with_height(first.quality, FIRST), "evaluation-quality")
    st.caption(tradeoffs.HOW_TO_READ)
    losses = {result.name: result.quality.known_kl for result in document.variants[1:] if result.quality}
    if sentence := load_words.floor_sentence(losses, address.current().max_kl):
        st.caption(message(sentence))
    verdict_panel.show_other_load(document)


def _fill_actions(
    opened: Workspace, view: EvaluationView, places: ActionPlaces, what_if: WhatIf, priced: Evaluation
) -> None:
    """Draw the actions of the page, at the price and the limits that were chosen on it."""
    # 1. Where nothing won, measuring more is what to do next and stays in view.
    with places.more if headline.find_win(view.document) is None else places.actions:
        verdict_panel.more_button(opened, view)
    # 2. The others.
    with places.compare:
        parameters = what_if_url.parameters(what_if)
        navigation.link("compare", "Compare", ":material/compare_arrows:", ids=view.id, **parameters)
    with places.actions:
        downloads(opened, view, what_if, priced)
        navigation.link("evaluate", "Measure again", ":material/refresh:", **form.repeat_parameters(view.document))
        navigation.link("evaluate", "All evaluations", ":material/history:")


def _show_next_steps(opened: Workspace, document: Evaluation) -> None:
    """Draw the next steps with a variant, at first the winner; nothing if all are external addresses."""
    won = headline.find_win(document)
    best = won.after.name if won else document.variants[-1].name
    results = sorted(
        (result for result in document.variants if result.variant.kind != "url"), key=lambda result: result.name == best
    )
    if results:
        first = document.variants[0].variant
        baseline = first.source if first.kind != "url" else None
        next_steps.show(opened, list(dict.fromkeys(result.variant.source for result in results)), baseline=baseline)


def draw_speed(opened: Workspace, view: EvaluationView, shown: Evaluation, priced: Evaluation) -> None:
    """Draw the verdicts, every latency, goodput, every figure, and results of other tools."""
    document = view.document
    verdict_panel.show_details(document, shown)
    draw_lines(shown)
    panel.show(document)
    st.subheader("Which variants meet your SLO?")
    goodput.show(view, document, shown)
    draw_starts(shown)
    st.subheader("Figures")
    figure_tables.show(priced, view.id)
    imported_results.show(opened, document)


def draw_starts(document: Evaluation) -> None:
    """Draw how long each server took to start; nothing if none was started here."""
    if any(result.starts for result in document.variants):
        st.subheader(resources.READY)
        chart = resources.startups(document, charts.theme())
        charts.show(chart, "evaluation-starts", resources.startups_alt(document), file=False)
        st.caption(resources.START_KINDS_TEXT)


def draw_lines(document: Evaluation) -> None:
    """Draw latency and throughput against concurrency; the price has a tab of its own."""
    # Latency on the left, at a percentile.
    theme = charts.theme()
    left, right = st.columns(2)
    with left:
        metric = _pick("Latency", drawn.LATENCIES, "speed_latency")
        percentile = st.segmented_control(
            "Percentile",
            drawn.PERCENTILES,
            default="p50",
            required=True,
            key=page_key("speed_percentile"),
            bind="query-params",
            label_visibility="collapsed",
        )
        chart = drawn.latency(document, metric, percentile or "p50", theme)
        charts.show(charts.with_height(chart, HALF), "speed-latency")
    # Throughput on the right.
    with right:
        metric = _pick("Throughput", drawn.THROUGHPUTS, "speed_throughput")
        charts.show(charts.with_height(drawn.throughput(document, metric, theme), HALF), "speed-throughput")


def _pick(label: str, choices: dict[str, str], key: str) -> str:
    chosen: str = st.selectbox(
        label, list(choices), format_func=choices.__getitem__, key=page_key(key), bind="query-params"
    )
    return chosen


def draw_quality(document: Evaluation) -> None:
    """Draw the loss of quality with prices, and the text on which it was scored."""
    if not any(result.quality for result in document.variants):
        st.info('Quality was not measured. Evaluate again with "Include quality".', icon=":material/info:")
        return
    charts.show(tradeoffs.quality_speed(document, None, charts.theme()), "quality-price")
    if document.has_price:
        st.caption("The figure at a mark is its price in USD per million output tokens at this load.")
    st.table(quality_rows(document), border="horizontal", hide_index=True, alt="Quality of each variant")
    st.caption(message(quality_loss.scale_sentence()))
    st.caption(
        "Answers: greedy answers to the first prompts of the workload, compared with the baseline's; failed "
        "requests are left out. In brackets: 95% intervals."
    )
    for sentence in engines.cross_engine_sentences(document):
        st.caption(message(sentence))


def quality_rows(document: Evaluation) -> list[dict[str, str]]:
    """Return a row per variant: scores, agreement with the baseline's answers, and the text scored on."""
    return [
        {
            "Variant": f"**{plain(result.name)}**",
            "In words": quality_loss.words(result.quality) or "not scored",
            "Quality": _scores(result.quality) or "not scored",
            "Answers": _answers(result) if number else "the baseline's own",
            "Scored on": plain(scored(result)),
        }
        for number, result in enumerate(document.variants)
    ]


def _scores(quality: Quality | None) -> str:
    """Return the scores, with the tail of the KL divergence: a mean hides a few bad positions."""
    tail = None if quality is None else quality.kl_p99
    return f"{quality_scores(quality)}{'' if tail is None else f'; KL p99 {figure(tail, 2)}'}"


def _answers(result: VariantResult) -> str:
    return (answers_agreement(result.quality) if result.quality else "") or "not compared"


def draw_tasks(document: Evaluation) -> None:
    """Draw the scores of lm-eval tasks; nothing if none were requested."""
    basis = tasks.basis(document)
    if basis is None:
        if document.options.tasks:
            st.caption("No variant was scored on the tasks: the warnings above say why.")
        return
    st.markdown("**Tasks**")
    rows = [
        {name: cell if name == "Score" else plain(cell) for name, cell in row.items()}
        for row in tasks.short_rows(document)
    ]
    st.table(rows, border="horizontal", hide_index=True, alt="Score of each variant on each task, against the baseline")
    for sentence in tasks.guessing_sentences(document):
        st.caption(message(sentence))
    st.caption(f"In brackets the number of samples. {plain(basis)}")


def downloads(opened: Workspace, view: EvaluationView, what_if: WhatIf, priced: Evaluation) -> None:
    """Draw the downloads: report and table at the chosen price (`priced`), the document at its own."""
    with st.container(horizontal=True, width="content"):
        st.download_button(
            "Report (HTML)",
            report_download.report_writer(opened, view, what_if),
            f"{view.id}.html",
            "text/html",
            icon=":material/description:",
            on_click="ignore",
            key=page_key(f"html-{view.id}"),
        )
        st.download_button(
            "Figures (JSON)",
            lambda: view.document.model_dump_json(indent=2),
            f"{view.id}.json",
            "application/json",
            on_click="ignore",
            key=page_key(f"json-{view.id}"),
        )
        st.download_button(
            "Table (CSV)",
            lambda: csv(priced),
            f"{view.id}.csv",
            "text/csv",
            on_click="ignore",
            key=page_key(f"csv-{view.id}"),
        )
