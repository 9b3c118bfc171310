"""An evaluation on a screen: verdicts first, then charts, the table, quality, validity and downloads."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import charts
from app.navigation import own
from app.results import chart_grid, costs, energy, goodput, report_download, requests, shown_variants, tables, tasks
from app.words import message, plain
from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.fingerprint import configuration_hash
from backend.domain.evaluation.select import only
from backend.domain.evaluation.soundness import reasons, valid
from backend.domain.figures import counted, figure
from backend.domain.machine.lines import hardware_line, versions_line
from backend.domain.what_if.costs import WhatIf
from backend.present.charts import evaluation as drawn
from backend.present.words import search
from backend.present.words.measured import INTERLEAVE, answers_agreement, quality_scores, scored
from backend.present.words.verdicts import Verdict, verdicts
from backend.service import Workspace
from backend.service.evaluations.evaluations import EvaluationView

AS_STORED = WhatIf()
FIRST = 320
"""Pixels of the first chart: with the grid above it, within the first screenful of 1280 x 800."""


def verdict_icon(verdict: Verdict) -> str:
    """A sign for the words that follow, never instead of them."""
    if any(row.why for row in verdict.rows):
        return ":material/help:"
    return ":material/equal:" if verdict.throughput == "same" else ":material/balance:"


def say_verdicts(document: Evaluation) -> None:
    """One sentence a variant and level, and what to mind."""
    say_sentences(document)
    say_warnings(document)


def say_search(document: Evaluation) -> None:
    """One sentence a variant: the highest load that keeps the limits, the knee, and what stood in the way of more."""
    said = (f":material/search: {message(sentence)}" for sentence in search.sentences(document))
    st.markdown("\n\n".join(said))
    st.caption(search.MEANING)


def say_sentences(document: Evaluation) -> None:
    if search.is_search(document):
        say_search(document)
        return
    found: list[Verdict] = verdicts(document)
    if not found:
        st.info("One variant was measured, so there is nothing to compare: add another for a verdict.", icon=":material/info:")
    if found:  # one element: a browser is slow with hundreds
        st.markdown("\n\n".join(f"{verdict_icon(verdict)} {verdict.text}" for verdict in found))


def say_warnings(document: Evaluation) -> None:
    for warning in document.warnings:
        st.caption(f":material/warning: {message(warning)}")


def say_provenance(document: Evaluation) -> None:
    where = f"Measured {document.measured_at} on {hardware_line(document.hardware)} with {versions_line(document.versions)}"
    repeats = counted(document.options.repeats, "repeat")
    st.caption(plain(f"{where}. Workload {document.workload.name}, {repeats}, servers {document.interleave}."))


def draw_speed(document: Evaluation, key: str) -> None:
    """Latency and throughput against concurrency; price has its own choices, so it stands with them."""
    theme = charts.theme()
    left, right = st.columns(2, vertical_alignment="bottom")
    with left:
        metric = _pick("Latency", drawn.LATENCIES, f"{key}_latency")
    with right:
        percentile = st.segmented_control(
            "Percentile", drawn.PERCENTILES, default="p50", required=True, key=own(f"{key}_percentile"), bind="query-params"
        )
    charts.show(drawn.latency(document, metric, percentile or "p50", theme), f"{key}-latency")
    metric = _pick("Throughput", drawn.THROUGHPUTS, f"{key}_throughput")
    charts.show(drawn.throughput(document, metric, theme), f"{key}-throughput")


def _pick(label: str, choices: dict[str, str], key: str) -> str:
    chosen: str = st.selectbox(label, list(choices), format_func=choices.__getitem__, key=own(key), bind="query-params")
    return chosen


def draw_quality(document: Evaluation, key: str) -> None:
    """What was lost, and what that was scored on."""
    if not any(result.quality for result in document.variants):
        st.info("Quality was not measured here: evaluate again with quality on.", icon=":material/info:")
        return
    charts.show(drawn.quality_speed(document, None, charts.theme()), f"{key}-quality")
    if document.options.price_per_hour is not None:
        st.caption("The figure at a mark is its price per million output tokens at this load.")
    st.table(quality_rows(document), border="horizontal", hide_index=True, alt="Quality of each variant")
    st.caption(
        "Answers: greedy ones to the workload's first prompts, held against the baseline's; those of failed requests are left "
        "out. In brackets: 95% intervals."
    )


def quality_rows(document: Evaluation) -> list[dict[str, str]]:
    """One a variant: what was scored, how far its answers agree with the baseline's, and what that was scored on."""
    return [
        {
            "Variant": f"**{plain(result.name)}**",
            "Quality": quality_scores(result.quality) or "not scored",
            "Answers": _answers(result) if number else "the baseline's own",
            "Scored on": plain(scored(result)),
        }
        for number, result in enumerate(document.variants)
    ]


def _answers(result: VariantResult) -> str:
    return (answers_agreement(result.quality) if result.quality else "") or "not compared"


def validity(document: Evaluation) -> list[dict[str, Any]]:
    """One row a variant and level: whether its figures are the server's, and why not."""
    return [_audited(result, level) for result in document.variants for level in result.levels]


def _audited(result: VariantResult, level: Level) -> dict[str, Any]:
    audit = level.audit
    return {
        "Variant": result.name,
        "Valid": valid(level),
        "Requested concurrency": level.load.cell,
        "Achieved concurrency": figure(audit.achieved_concurrency),
        "Client headroom": headroom(level),
        "Errors": ", ".join(f"{kind} {count}" for kind, count in level.errors.items()) or str(level.invocation_errors),
        "Repeats kept": f"{len(level.blocks)} of {level.repeats}",
        "Looping answers": level.looping_outputs,
        "Loop lag p99 (ms)": figure(audit.loop_lag_ms_p99),
        "Other programs (cores)": figure(audit.others),
        "Why not": "; ".join(reasons(level)),
    }


def headroom(level: Level) -> str:
    """How much of one core the load generator had left while the level ran."""
    left = level.audit.headroom
    return "not measured" if left is None else f"{left:.0%}"


def say_validity(document: Evaluation) -> None:
    rows = validity(document)
    wrong = [row for row in rows if row["Valid"] == "no"]
    if wrong:
        words = (
            f"{len(wrong)} of {len(rows)} levels are not the server's figures: they are hollow on the charts and get no verdict."
        )
        st.warning(words, icon=":material/warning:")
    else:
        st.success(
            "The load generator kept up at every level and at most one request in a hundred failed.", icon=":material/check:"
        )
    if in_part := sum(row["Valid"] == "in part" for row in rows):
        words = f"{in_part} of {len(rows)} levels have no tokens/s and no prices: answers came without a token count."
        st.warning(words, icon=":material/warning:")
    st.dataframe(rows, hide_index=True, alt="Validity of each level")
    st.caption(
        f"Configuration SHA-256 `{configuration_hash(document)[:16]}…`: load, variants and workload. "
        f"Workload SHA-256 `{document.workload.sha256[:16]}…`. "
        f"{counted(document.options.repeats, 'repeat')}. "
        f"Order: {plain(INTERLEAVE.get(document.interleave, document.interleave))}."
    )


def downloads(opened: Workspace, view: EvaluationView, asked: WhatIf = AS_STORED, priced: Evaluation | None = None) -> None:
    """The report, the document and the table, as files: the report and the table at the price that was `asked`, which `priced`
    has, the document as it was stored."""
    table = priced or view.document
    with st.container(horizontal=True):
        st.download_button(
            "Report (HTML)", report_download.page(opened, view, asked), f"{view.id}.html", "text/html",
            icon=":material/description:", on_click="ignore", key=own(f"html-{view.id}"),
        )  # fmt: skip
        st.download_button(
            "Figures (JSON)", lambda: view.document.model_dump_json(indent=2), f"{view.id}.json", "application/json",
            on_click="ignore", key=own(f"json-{view.id}"),
        )  # fmt: skip
        st.download_button(
            "Table (CSV)", lambda: drawn.csv(table), f"{view.id}.csv", "text/csv", on_click="ignore", key=own(f"csv-{view.id}")
        )


def say_glance(document: Evaluation) -> None:
    """The verdicts as a grid, what they are of, and what to mind about them; of a search, what it found."""
    if search.is_search(document):
        say_search(document)
        return
    chart_grid.show(document)
    if len(document.variants) < 2:
        st.caption("One variant was measured, so there is nothing to compare: measure it beside another for a verdict.")
        return
    st.caption(
        f"Output tokens/s against {plain(document.variants[0].name)}, with 95% intervals. Latencies are in the full verdicts."
    )


def show(opened: Workspace, view: EvaluationView) -> None:
    """The whole of it. Charts and sentences are of the variants that are shown, tables of all."""
    document = view.document
    shown = shown_variants.choose(document, "shown")
    names = [result.name for result in shown.variants]
    say_glance(shown)
    first = drawn.pareto(document, charts.theme(), names)
    charts.show(charts.of_height(first, FIRST), "evaluation-pareto")
    if not search.is_search(document):
        with st.expander("Full verdicts, with every latency", icon=":material/balance:"):
            say_sentences(shown)
    say_warnings(document)
    say_provenance(document)
    draw_speed(shown, "speed")
    st.subheader("What would it cost?")
    asked, priced = costs.show(opened, document, names)
    st.subheader("Figures")
    tables.show(priced, view.id)
    downloads(opened, view, asked, priced)
    st.subheader("What keeps your limits?")
    goodput.show(view, document, shown)
    st.subheader("Quality")
    draw_quality(only(priced, names), view.id)
    tasks.show(document)
    st.subheader("Requests and answers")
    requests.show(view, names)
    st.subheader("Validity")
    say_validity(document)
    energy.show(view.document)
