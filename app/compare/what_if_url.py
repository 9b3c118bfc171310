"""The what-if of the Compare page in its address: written when a field changes, read when a link or Back changes it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import streamlit as st

from app import url_parameters
from backend.domain.what_if.costs import WhatIf

NAMES = ("prices", "discount", "slo_ttft", "slo_tpot")
LAST_VALUES, REVISION = "compare_seen", "compare_revision"


def parameters(what_if: WhatIf) -> dict[str, str]:
    """Return what this page's address says of the same what-if for one evaluation: price, discount, latency limits."""
    percent = None if what_if.discount is None else what_if.discount * 100
    values = (what_if.per_hour, percent, what_if.limits.ttft_ms, what_if.limits.tpot_ms)
    return {name: f"{value:g}" for name, value in zip(NAMES, values, strict=True) if value is not None}


def follow() -> None:
    """Give the fields new keys if the address differs from what this page last read or wrote."""
    now = {name: url_parameters.query().get(name, "") for name in NAMES}
    if st.session_state.get(LAST_VALUES, now) != now:
        st.session_state[REVISION] = st.session_state.get(REVISION, 0) + 1
    st.session_state[LAST_VALUES] = now


def field_key(name: str) -> str:
    """Return the key of a field: a new one after the address changed, since a field has its value per key."""
    revision = st.session_state.get(REVISION, 0)
    return f"{name}_{revision}" if revision else name


def parse_number(words: Any, most: float) -> float | None:
    """Return a number of a field or the address from 0 to `most`; None if it is none."""
    try:
        value = float(words)
    except (TypeError, ValueError):
        return None
    return value if 0 <= value <= most else None


def remember(name: str) -> None:
    """Note what a field has just written into the address, which is no change by a link."""
    st.session_state[LAST_VALUES][name] = url_parameters.query().get(name, "")


def write(name: str, words: str) -> None:
    """Write a parameter into the address; empty text removes it."""
    if words and url_parameters.query().get(name) != words:
        url_parameters.query()[name] = words
    elif not words and name in url_parameters.query():
        del url_parameters.query()[name]
    st.session_state[LAST_VALUES][name] = words


def show_link() -> None:
    """Draw the button that opens the address of this page, to copy."""
    parameters = [(name, value) for name in url_parameters.query() for value in url_parameters.query().get_all(name)]
    with st.popover("Copy link", icon=":material/link:", key="compare_link", width="content"):
        st.code(f"{st.context.url or ''}?{urlencode(parameters)}", language=None, wrap_lines=True)
        st.caption("The address holds the selection, the limits and the prices.")
