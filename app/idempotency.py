"""Submit one job per request, however often the button is clicked.

A key belongs to a fingerprint of the request. It changes with the request, when another run is wanted, or, for a button
that is always there, some seconds after the click.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import streamlit as st

from app.navigation import page_key

DOUBLE_CLICK_S = 5.0


def submission_key(purpose: str, fingerprint: str = "", *, for_s: float | None = None) -> str:
    """Return this session's submission key for the request; with `for_s`, clicks within so many seconds share it."""
    record: dict[str, Any] = st.session_state.setdefault(page_key(f"once-{purpose}"), {})
    now = time.monotonic()
    expired = for_s is not None and now - record.get("at", now) > for_s
    if record.get("fingerprint") != fingerprint or expired:
        record.clear()
        record.update(fingerprint=fingerprint, token=secrets.token_hex(12), at=now)
    return f"{purpose}-{record['token']}"


def remember_job(purpose: str, job_id: str) -> None:
    """Store the job that was submitted under the key. The seconds of a double click begin now: what was clicked while
    the job was being submitted comes after that."""
    st.session_state[page_key(f"once-{purpose}")].update(job=job_id, at=time.monotonic())


def submitted_job(purpose: str, fingerprint: str) -> str | None:
    """Return the job that this session submitted for exactly this request, or None."""
    submission_key(purpose, fingerprint)
    record: dict[str, Any] = st.session_state[page_key(f"once-{purpose}")]
    return record.get("job")


def renew(purpose: str) -> None:
    """Forget the key, so that the same request can be submitted again."""
    st.session_state.pop(page_key(f"once-{purpose}"), None)
