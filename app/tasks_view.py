"""The scores of lm-eval tasks on a screen."""

from __future__ import annotations

import streamlit as st

from app.words import plain
from backend.domain import task_table
from backend.domain.evaluation import Evaluation


def show(document: Evaluation, key: str) -> None:
    """Nothing where no tasks were asked for."""
    said = task_table.basis(document)
    if said is None:
        if document.options.tasks:
            st.caption("No variant was scored on the tasks: the warnings above say why.")
        return
    st.markdown("**Tasks**")
    st.dataframe(
        task_table.rows(document), hide_index=True, key=f"{key}-tasks", placeholder="none",
        alt="Score of each variant on each task, with its difference to the baseline",
    )  # fmt: skip
    st.caption(plain(said))
