"""The list of past evaluations: the speed-up of each as a bar, its figures, and its verdict in one line."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import url_parameters
from app.formatting import cell, local_time
from app.navigation import page_key, paginate
from app.session import choose_owner
from app.shell import show_damaged
from backend.domain.evaluation.document import Evaluation
from backend.domain.figures import figure, rounded
from backend.present.source_names import evaluation_name
from backend.present.variant_tiles import find_leading
from backend.present.words import headline, load_search
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.evaluations.evaluations import EvaluationView

PER_PAGE = 10
SPEED_UP, OUTCOME = "Speed-up", "Outcome"
LONGEST_BAR = 3.0
"""The speed-up whose bar fills the column; a higher one fills it too, and its figure says how high it is."""
TWO_LINES = 72
"""Height of a row in pixels: a verdict wraps if the row has room."""


def has_any(opened: Workspace) -> bool:
    return evaluations.count(opened) > 0


def show_past(opened: Workspace) -> None:
    """Draw the evaluations, newest first, a page at a time. A row opens one."""
    # 1. Count them.
    total, own_ones = evaluations.count(opened), evaluations.count(opened, owner=opened.actor.name)
    st.subheader("Past evaluations")
    if not total:
        st.caption("No evaluations yet. Each one appears here with its verdict in one line.")
        return
    owner = choose_owner(opened, total > own_ones, page_key("past_mine"))
    total = own_ones if owner else total
    shared = owner is None and total > own_ones
    # 2. Read one page of them.
    number, first = paginate(total, PER_PAGE, "past_page")
    part: dict[str, Any] = {"owner": owner, "limit": PER_PAGE, "offset": first}
    views = evaluations.listing(opened, **part)
    if len(views) < min(PER_PAGE, total - first):
        show_damaged(opened, "evaluation", [title.id for title in evaluations.list_titles(opened, **part)])
    if not views:
        return
    # 3. The table; a selected row opens.
    picked = st.dataframe(
        [row(view) | ({"By": view.owner} if shared else {}) for view in views],
        hide_index=True,
        key=page_key(f"past_{number}_{views[0].id}"),
        on_select="rerun",
        row_height=TWO_LINES,
        selection_mode="single-cell",
        alt="Past evaluations, newest first, each with its verdict",
        column_config={
            "Evaluation": st.column_config.TextColumn(width=150),
            SPEED_UP: st.column_config.ProgressColumn(
                width=95,
                min_value=0.0,
                max_value=LONGEST_BAR,
                format="%.2fx",
                help="Factor of output tokens/s.",
            ),
            OUTCOME: st.column_config.TextColumn(width=135, help="With the 95% interval of the speed-up."),
            "TTFT ms": st.column_config.NumberColumn("TTFT p50 ms", width=85, help="Median time to first token."),
            "USD/M out": st.column_config.NumberColumn(width=70, help="USD per million output tokens."),
            "KL": st.column_config.NumberColumn(width=65, help="Mean KL divergence from the original."),
            "Verdict": st.column_config.TextColumn(width=235),
        },
    )
    st.caption("Choose a row to open it.")
    if picked.selection.cells:
        url_parameters.query().replace({"id": views[picked.selection.cells[0][0]].id})
        st.rerun()


def row(view: EvaluationView) -> dict[str, Any]:
    """Return one line: figures of the leading variant, and the verdict."""
    text = (
        " ".join(load_search.sentences(view.document))
        if load_search.is_search(view.document)
        else headline.short_sentence(view.document)
    )
    return {
        "Evaluation": evaluation_name(view.title),
        **leading_figures(view.document),
        "Verdict": cell(text),
        "Measured": local_time(view.created_at),
    }


def leading_figures(evaluation: Evaluation) -> dict[str, Any]:
    """Return speed-up, interval, outcome, TTFT, price and KL of the leading variant; None where unknown."""
    leading = find_leading(evaluation)
    if leading is None:
        return dict.fromkeys((SPEED_UP, OUTCOME, "TTFT ms", "USD/M out", "KL"))
    level, quality, compared = leading.level, leading.result.quality, leading.row
    interval = f", {figure(compared.ci95[0])} to {figure(compared.ci95[1])}" if compared.ci95 else ""
    values = (
        level.ttft_ms.p50 if level is not None and level.ttft_ms else None,
        level.price.per_million_output if level is not None and level.price else None,
        quality.kl_mean if quality else None,
    )
    ttft, price, loss = (None if value is None else rounded(value) for value in values)
    return {
        SPEED_UP: compared.ratio,
        OUTCOME: f"{leading.word}{interval}",
        "TTFT ms": ttft,
        "USD/M out": price,
        "KL": loss,
    }
