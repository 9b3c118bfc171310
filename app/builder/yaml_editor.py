"""Edit the recipe as YAML text."""

from __future__ import annotations

import streamlit as st

from app import shell
from app.builder import recipe_form
from app.builder.recipe_form import UNREAD, Draft
from app.formatting import message
from backend.service.plans import recipe_files
from backend.service.plans.recipe_files import MAX_BYTES


def show(draft: Draft) -> None:
    """Draw the recipe as text. Pasted text is read on request, and remains in the field if it cannot be read."""
    with st.expander("As YAML", expanded=draft.error is not None or UNREAD in st.session_state):
        key = recipe_form.widget_key("yaml", hash(draft.text))
        if unread := st.session_state.get(UNREAD):
            st.error(message(unread), icon=":material/error:")
        st.text_area("Recipe in YAML", draft.text, height=220, key=key, max_chars=MAX_BYTES)
        # Checked by the browser: a paste of megabytes would hold up the page for minutes before the service could
        # refuse it.
        st.caption(f"At most {MAX_BYTES // 1000} kB: longer text is cut.")
        with st.container(horizontal=True):
            st.button("Read this YAML", key="build_read-yaml", on_click=_read, args=(key,))
            st.download_button("Download", draft.text, "recipe.yaml", "application/yaml", on_click="ignore")


def _read(key: str) -> None:
    with shell.errors_in_session(UNREAD):
        recipe_form.set_recipe(recipe_files.read_text(st.session_state[key]))
