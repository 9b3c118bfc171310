"""Asking before an artifact is used whose quality is below the floor."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from app.field_labels import LABELS
from app.formatting import plain
from app.navigation import page_key
from backend.service import Workspace
from backend.service.models import variants


def confirm(opened: Workspace, sources: Iterable[str], name: str, *, say: bool = True) -> bool:
    """Say what is ruined among them, and ask; True where the person will use it all the same, and where nothing is
    ruined.

    `name` tells the questions of one page apart; `say` is False where the page has said it already.
    """
    warnings = variants.floor_warnings(opened, sources)
    for sentence in warnings if say else ():
        st.error(plain(sentence), icon=":material/warning:")
    return not warnings or st.checkbox(LABELS["anyway"], False, key=page_key(f"anyway_{name}"))
