"""Links from one screen to another, with what they are about in the URL."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from streamlit.errors import StreamlitAPIException

PAGES = Path(__file__).resolve().parent.parent / "pages"


def link(label: str, page: str, icon: str | None = None, **query: str) -> None:
    """A link to pages/`page`.py; plain words where this studio's navigation has no such page."""
    try:
        st.page_link(PAGES / f"{page}.py", label=label, icon=icon, query_params=query)
    except StreamlitAPIException:
        st.caption(label)
