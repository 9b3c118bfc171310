"""One submission for one thing built, however often the button is clicked.

A key belongs to a fingerprint of what is submitted; it changes when that changes, when asked for another run, or for a
button that is there every time one comes back (the starter on Home) some seconds after the click.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import streamlit as st

from app.navigation import page_key

DOUBLE_CLICK_S = 5.0


def submission_key(purpose: str, fingerprint: str = "", *, for_s: float | None = None) -> str:
    """The submission key of this session for what is built now; with `for_s`, clicks within so many seconds share
    it."""
    record: dict[str, Any] = st.session_state.setdefault(page_key(f"once-{purpose}"), {})
    now = time.monotonic()
    expired = for_s is not None and now - record.get("at", now) > for_s
    if record.get("fingerprint") != fingerprint or expired:
        record.clear()
        record.update(fingerprint=fingerprint, token=secrets.token_hex(12), at=now)
    return f"{purpose}-{record['token']}"


def remember_job(purpose: str, job_id: str) -> None:
    """The key's job was made."""
    st.session_state[page_key(f"once-{purpose}")]["job"] = job_id


def submitted_job(purpose: str, fingerprint: str) -> str | None:
    """The job that this session made of just this, or None."""
    submission_key(purpose, fingerprint)
    record: dict[str, Any] = st.session_state[page_key(f"once-{purpose}")]
    return record.get("job")


def renew(purpose: str) -> None:
    """Another run of the same, on purpose."""
    st.session_state.pop(page_key(f"once-{purpose}"), None)
