"""The searches of the home: each as a link, with its state, its winner, when it began and what it has spent."""

from __future__ import annotations

import streamlit as st

from app import navigation
from app.formatting import duration_range, local_time, plain
from backend.service import Workspace
from backend.service.tuning import tunings
from backend.service.tuning.tunings import SearchView

SHOWN = 8


def show(opened: Workspace) -> None:
    """Draw the latest searches; nothing where there is none."""
    views = tunings.listing(opened, limit=SHOWN + 1)
    if not views:
        return
    st.subheader("Searches")
    for view in views[:SHOWN]:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            navigation.link("tune", f"{view.title[0].upper()}{view.title[1:]}", ":material/tune:", id=view.id)
            st.caption(plain(_outcome(view)), width="content")
    if len(views) > SHOWN:
        st.caption(f"These are the latest {SHOWN}. `whetstone tunings list` shows more.")


def _outcome(view: SearchView) -> str:
    """Return `q8_0 on llama.cpp wins · 2026-11-23 14:05:09 · about 18 min of 20 min`."""
    outcome = {"running": "running", "stopped": "stopped", "done": "no winner"}[view.state]
    if view.winner is not None:
        outcome = f"{view.winner.trial.name} {'leads so far' if view.state == 'running' else 'wins'}"
    spent = f"{duration_range(view.spent_s, view.spent_s)} of {view.request.budget_min:g} min"
    return " · ".join([outcome, local_time(view.created_at), spent])
