"""Goodput: limits for each request as sliders in the address, and the requests within them.

Counted from the stored latencies at every change; nothing is run again.
"""

from __future__ import annotations

import streamlit as st

from app import charts
from app.compare import slo_sliders
from app.formatting import message
from app.load_bar import address, field_values
from app.navigation import page_key
from backend.domain.errors import NotFound
from backend.domain.evaluation.document import Evaluation
from backend.domain.figures import figure
from backend.domain.limits.goodput import CountWithin, Goodput, RequestLimits, VariantLoad, best_goodputs
from backend.present.charts.goodput import goodput
from backend.service.evaluations import latencies
from backend.service.evaluations.evaluations import EvaluationView

FIELDS = {
    "ttft_ms": ("slo_ttft", "Time to first token, at most (ms)"),
    "tpot_ms": ("slo_tpot", "Inter-token latency, at most (ms)"),
    "client_latency_ms": ("slo_latency", "Whole answer, at most (ms)"),
}


def show(view: EvaluationView, document: Evaluation, shown: Evaluation) -> None:
    """Draw the sliders, a row per variant, and the chart of `shown`, the document with the selected variants."""
    st.caption(
        "Goodput is the number of requests per second with every latency within these limits; failed ones do not "
        "count. Fully to the right is no limit. Counted from the stored requests: nothing is run again."
    )
    limits = choose(document)
    try:
        counts = latencies.count_within(view, limits)
    except NotFound as error:
        st.info(message(error), icon=":material/info:")
        return
    st.dataframe(rows(document, counts), hide_index=True, alt="The highest goodput of each variant within the limits")
    charts.show(goodput(shown, counts, charts.theme()), "evaluation-goodput")


def choose(document: Evaluation) -> RequestLimits:
    """Draw the sliders, which begin with the planned load's limits. Return the limits."""
    load, limits = address.current(), dict[str, float | None]()
    planned = {"ttft_ms": load.max_ttft_ms, "tpot_ms": load.max_tpot_ms}
    for column, (metric, (key, label)) in zip(
        st.columns(len(FIELDS), vertical_alignment="bottom"), FIELDS.items(), strict=True
    ):
        highest = highest_latency(document, metric)
        if highest is None:
            column.caption(f"{label}: not measured")
            continue
        top, step = slo_sliders.slider_scale(highest)
        first = min(planned.get(metric) or top, top)
        field_values.follow_load(page_key(key), first)
        value = column.slider(label, 0.0, top, first, step, key=page_key(key), bind="query-params")
        limits[metric] = value if value < top else None
    return RequestLimits(**limits)


def highest_latency(document: Evaluation, metric: str) -> float | None:
    """Return the highest p99 of any level in milliseconds; None if it was not measured."""
    summaries = [getattr(level, metric) for result in document.variants for level in result.levels]
    return max((summary.p99 for summary in summaries if summary), default=None)


def rows(document: Evaluation, counts: dict[VariantLoad, CountWithin]) -> list[dict[str, str]]:
    """Return a row per variant at the load of its highest goodput, in the evaluation's order."""
    return [_row(name, best) for name, best in best_goodputs(document, counts).items()]


def _row(name: str, best: Goodput | None) -> dict[str, str]:
    if best is None:
        return {"Variant": name, "Highest goodput at": "no valid level"}
    level, (low, high) = best.level, best.interval
    return {
        "Variant": name,
        "Highest goodput at": f"concurrency {level.load.cell}" if level.load.is_closed else level.load.words,
        "Goodput (requests/s)": figure(best.requests_per_s),
        "Within the limits": f"{best.share:.1%} (95% {low:.1%} to {high:.1%})",
        "All requests/s": figure(best.requests_per_s / best.share) if best.share else figure(level.requests_per_s),
    }
