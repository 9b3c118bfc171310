"""The searches of the home, each as a link with its winner."""

from __future__ import annotations

import streamlit as st

from app import navigation
from backend.service import Workspace
from backend.service.tuning import tunings

SHOWN = 8


def show(opened: Workspace) -> None:
    """Draw the latest searches; nothing where there is none."""
    views = tunings.listing(opened, limit=SHOWN)
    if not views:
        return
    st.subheader("Searches")
    for view in views:
        best = f": {view.winner.trial.name}" if view.winner else ""
        navigation.link("tune", f"{view.title}, {view.state}{best}", ":material/tune:", id=view.id)
