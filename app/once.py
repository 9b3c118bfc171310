"""One submission for one thing built, however often the button is clicked.

A key belongs to a fingerprint of what is submitted; it changes when that changes, or when asked for another run.
"""

from __future__ import annotations

import secrets

import streamlit as st


def key(purpose: str, fingerprint: str) -> str:
    """The submission key of this session for what is built now."""
    held: dict[str, str] = st.session_state.setdefault(f"once-{purpose}", {})
    if held.get("fingerprint") != fingerprint:
        held.clear()
        held.update(fingerprint=fingerprint, token=secrets.token_hex(12))
    return f"{purpose}-{held['token']}"


def remember(purpose: str, job_id: str) -> None:
    """The key's job was made."""
    st.session_state[f"once-{purpose}"]["job"] = job_id


def made(purpose: str, fingerprint: str) -> str | None:
    """The job that this session made of just this, or None."""
    key(purpose, fingerprint)
    held: dict[str, str] = st.session_state[f"once-{purpose}"]
    return held.get("job")


def renew(purpose: str) -> None:
    """Another run of the same, on purpose."""
    st.session_state.pop(f"once-{purpose}", None)
