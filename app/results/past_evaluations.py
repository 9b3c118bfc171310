"""The list of past evaluations: the verdict of each in one line."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app.formatting import cell, local_time
from app.navigation import page_key, paginate
from app.session import choose_owner
from app.shell import show_damaged
from backend.present.words import headline, load_search
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.evaluations.evaluations import EvaluationView

PER_PAGE = 10
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
            "Evaluation": st.column_config.TextColumn(width=190),
            "Verdict": st.column_config.TextColumn(width=460),
        },
    )
    st.caption("Choose a row to open it.")
    if picked.selection.cells:
        st.query_params.from_dict({"id": views[picked.selection.cells[0][0]].id})
        st.rerun()


def row(view: EvaluationView) -> dict[str, str]:
    """Return one line."""
    text = (
        " ".join(load_search.sentences(view.document))
        if load_search.is_search(view.document)
        else headline.headline_sentence(view.document)
    )
    return {
        "Evaluation": view.title.removeprefix("Evaluate "),
        "Verdict": cell(text),
        "Measured": local_time(view.created_at),
    }
