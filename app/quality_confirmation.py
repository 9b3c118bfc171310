"""Ask for confirmation before an artifact is used whose quality is below the floor."""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from app.field_labels import LABELS
from app.formatting import message
from app.navigation import page_key
from backend.service import Workspace
from backend.service.models import variants


def confirm(opened: Workspace, sources: Iterable[str], name: str, *, say: bool = True) -> bool:
    """Show a warning for each such artifact and a checkbox. Return whether the person accepts, or need not.

    `name` distinguishes the checkboxes of one page; `say` is False if the page has shown the warnings already.
    """
    warnings = variants.floor_warnings(opened, sources)
    for sentence in warnings if say else ():
        st.error(message(sentence), icon=":material/warning:")
    return not warnings or st.checkbox(LABELS["anyway"], False, key=page_key(f"anyway_{name}"))
