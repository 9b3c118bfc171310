"""The requests of an evaluation: a run on the clock, distributions, and the answers that changed most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from app import charts
from app.answer_differences import differences, markup
from app.formatting import message, plain, shorten
from app.navigation import page_key as named
from backend.domain.errors import NotFound
from backend.domain.figures import figure
from backend.domain.load.load import Load
from backend.domain.load.records import RequestRecord
from backend.present.charts import requests as charts_requests
from backend.present.charts.markers import places, provenance
from backend.present.report_content import LATENCIES
from backend.service.evaluations import latencies, request_pairs
from backend.service.evaluations.evaluations import EvaluationView
from backend.service.evaluations.request_pairs import RequestPair

SHOWN = 25
"""Pairs of answers in the list."""


def show(view: EvaluationView, shown: Sequence[str]) -> None:
    """Draw the answers that changed most, the spread of latencies, and a run with every request.

    It reads the records of one level. `shown`: the variants on the charts.
    """
    try:
        loads = {load.words: load for load in request_pairs.loads(view)}
        selected = st.segmented_control(
            "At", list(loads), default=next(iter(loads)), required=True, key=named("requests_at"), bind="query-params"
        )
        load = loads[selected or next(iter(loads))]
        _show_answers(view, load)
        _show_runs(view, load, shown)
    except NotFound as error:
        st.info(message(error), icon=":material/info:")


def _show_answers(view: EvaluationView, load: Load) -> None:
    # 1. Choose the variant.
    baseline, *others = [result.name for result in view.document.variants]
    if not others:
        return
    st.markdown("**Answers that changed most**")
    variant = st.selectbox("Against the baseline", others, key=named("requests_variant"), bind="query-params")
    pairs = request_pairs.read_pairs(view, variant, load)
    if not pairs:
        st.caption("No request was answered by both.")
        return
    # 2. The pairs, most different first.
    same = sum(pair.same for pair in pairs)
    sentence = f"{same} of {len(pairs)} answers have the same words as those of {plain(baseline)}."
    chance = (
        " The temperature is above 0, so answers differ by chance too." if view.document.options.temperature > 0 else ""
    )
    own = (
        " From the second turn on, a conversation continues from the variant's own answers."
        if any(p.turn for p in pairs)
        else ""
    )
    st.caption(f"{sentence}{chance}{own} The most different ones come first; choose a row to read both.")
    key = named(f"pairs-{load.key}-{variant}")
    picked = st.dataframe(
        pair_rows(pairs[:SHOWN]),
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        key=key,
        alt="Prompts whose answers differ most",
    )
    # 3. The selected pair.
    place = picked.selection.rows[0] if picked.selection.rows else 0
    _side_by_side(pairs[min(place, len(pairs) - 1)], baseline, variant)


def pair_rows(pairs: list[RequestPair]) -> list[dict[str, Any]]:
    """Return a row per prompt: its text, how far the answers agree, and their times."""
    return [
        {
            "Prompt": shorten(" ".join(pair.prompt_text.split()), 80) if pair.prompt_text else _prompt_line(pair),
            "Repeat": pair.block + 1,
            "Token F1": figure(1 - pair.worse),
            "Same words": "yes" if pair.same else "no",
            "Baseline (s)": figure(pair.baseline_s),
            "Variant (s)": figure(pair.variant_s),
        }
        for pair in pairs
    ]


def _prompt_line(pair: RequestPair) -> str:
    return f"line {pair.prompt + 1}" if pair.turn is None else f"line {pair.prompt + 1}, turn {pair.turn + 1}"


def _side_by_side(pair: RequestPair, baseline: str, variant: str) -> None:
    if pair.prompt_text:
        with st.expander("The prompt"):
            st.code(pair.prompt_text, language=None, wrap_lines=True)
    sides = differences(pair.baseline, pair.variant)
    for column, name, pieces in zip(st.columns(2), (baseline, variant), sides, strict=True):
        with column:
            st.markdown(f"**{plain(name)}**")
            st.html(markup(pieces))


def _show_runs(view: EvaluationView, load: Load, shown: Sequence[str]) -> None:
    # 1. The spread of a latency.
    document, theme = view.document, charts.theme()
    names = [result.name for result in document.variants]
    where = provenance(document)
    known = LATENCIES
    metric = (
        st.segmented_control(
            "Spread of",
            list(known),
            default="ttft_ms",
            required=True,
            format_func=lambda name: known[name],
            key=named("requests_spread"),
            bind="query-params",
        )
        or "ttft_ms"
    )
    spread = {variant: latencies.sorted_latencies(view, variant, load, metric) for variant in shown}
    charts.show(charts_requests.distribution(metric, load.words, spread, places(document), where, theme), "ecdf")
    # 2. One run on the clock.
    repeats = [str(number + 1) for number in range(document.options.repeats)]
    first, second = st.columns(2)
    name = first.selectbox("Run of", names, key=named("requests_run"), bind="query-params")
    late = next((level.audit.late_blocks for level in document.variants[0].levels if level.load == load), ())
    block = second.selectbox(
        "Repeat",
        repeats,
        format_func=lambda number: f"{number}, left out" if int(number) - 1 in late else number,
        key=named("requests_block"),
        bind="query-params",
    )
    run = request_pairs.read_run(view, load, name, int(block) - 1)
    charts.show(charts_requests.timeline(name, load.words, run, where, theme), "timeline", run_sentence(name, run))
    st.caption("A bar is a request. Between the dotted lines every stream is past its warm-up and still running.")


def run_sentence(name: str, run: list[RequestRecord]) -> str:
    """Return the timeline in a sentence."""
    measured = [record for record in run if not record.warm]
    failed = sum(not record.ok for record in measured)
    return f"{len(measured)} measured requests of {name} and {len(run) - len(measured)} of warm-up; {failed} failed."
