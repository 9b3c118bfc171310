"""The what-if of the Compare page in its address: written when a field changes, followed when a link or Back changes
it."""

from __future__ import annotations

from typing import Any

import streamlit as st

NAMES = ("prices", "discount", "slo_ttft", "slo_tpot")
SEEN, REVISION = "compare_seen", "compare_revision"


def follow() -> None:
    """Draw the fields anew where the address says something else than this page last read or wrote there."""
    now = {name: st.query_params.get(name, "") for name in NAMES}
    if st.session_state.get(SEEN, now) != now:
        st.session_state[REVISION] = st.session_state.get(REVISION, 0) + 1
    st.session_state[SEEN] = now


def field_key(name: str) -> str:
    """Of a field. A new one after the address was changed from outside, since a field keeps its value as long as its
    key."""
    revision = st.session_state.get(REVISION, 0)
    return f"{name}_{revision}" if revision else name


def parse_number(words: Any, most: float) -> float | None:
    """Of a field or the address, from 0 to `most`; None where it is none."""
    try:
        value = float(words)
    except (TypeError, ValueError):
        return None
    return value if 0 <= value <= most else None


def write(name: str, words: str) -> None:
    """Empty words take the name out of the address."""
    if words and st.query_params.get(name) != words:
        st.query_params[name] = words
    elif not words and name in st.query_params:
        del st.query_params[name]
    st.session_state[SEEN][name] = words
