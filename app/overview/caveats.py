"""Fold the caveats of figures into one button with their number."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from app.formatting import message
from app.navigation import page_key
from backend.domain.figures import counted


def show(sentences: Sequence[str]) -> None:
    """Draw the button that opens the sentences; nothing if there are none."""
    if not sentences:
        return
    label = counted(len(sentences), "caveat")
    with st.popover(label, icon=":material/warning:", key=page_key("caveats"), width="content"):
        st.markdown("\n".join(f"- {message(sentence)}" for sentence in sentences))
