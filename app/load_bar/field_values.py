"""Fields of pages that begin with a value of the planned load, and follow it when the load changes."""

from __future__ import annotations

from typing import Any

import streamlit as st


def follow_load(key: str, value: Any) -> None:
    """Give a field that is drawn already the new value of the load, if that has changed since.

    A field that is not drawn yet begins with its default, or with its value in the address.
    """
    mark = f"load_value-{key}"
    changed = mark in st.session_state and st.session_state[mark] != value
    st.session_state[mark] = value
    if changed and key in st.session_state:
        st.session_state[key] = value
