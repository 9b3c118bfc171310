"""The scores of lm-eval tasks on a screen."""

from __future__ import annotations

import streamlit as st

from app.words import plain
from backend.domain.evaluation.document import Evaluation
from backend.present.tables import tasks


def show(document: Evaluation) -> None:
    """Nothing where no tasks were asked for."""
    said = tasks.basis(document)
    if said is None:
        if document.options.tasks:
            st.caption("No variant was scored on the tasks: the warnings above say why.")
        return
    st.markdown("**Tasks**")
    rows = [{name: cell if name == "Score" else plain(cell) for name, cell in row.items()} for row in tasks.short_rows(document)]
    st.table(rows, border="horizontal", hide_index=True, alt="Score of each variant on each task, against the baseline")
    st.caption(f"In brackets the number of samples. {plain(said)}")
