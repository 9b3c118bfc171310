"""The workspace of this server process, opened once, and what every page says when it cannot be used."""

from __future__ import annotations

import gc
import sys
from typing import Any

import streamlit as st

from app.words import message, plain
from backend import service
from backend.domain.errors import ReadOnly, WhetstoneError
from backend.service import Workspace
from backend.service.jobs import supervisors

PATIENCE_S = 5.0
"""How long a click waits for a locked database. Writes here take milliseconds; after this a person is better told than kept."""


@st.cache_resource(show_spinner=False)  # type: ignore[untyped-decorator]
def _open() -> Workspace:
    return service.open_workspace(patience_s=PATIENCE_S)


def workspace() -> Workspace:
    """The workspace; a store that cannot be opened is told in one sentence and ends the page."""
    try:
        opened: Workspace = _open()
    except WhetstoneError as error:
        st.error(message(error), icon=":material/error:")
        st.stop()
        raise
    return opened


def frozen(opened: Workspace) -> dict[str, Any]:
    """For a button that starts or changes something: in a demonstration it is disabled and says why."""
    return {"disabled": True, "help": str(ReadOnly())} if opened.read_only else {}


def banner(opened: Workspace) -> None:
    """Say whose figures a demonstration shows; else say it when nothing will run what is queued, and what would."""
    if opened.demonstration is not None:
        st.info(plain(opened.demonstration.label), icon=":material/co_present:")
    elif not supervisors.alive(opened):
        st.warning(
            "No supervisor is running, so queued jobs wait. `whetstone up` starts one with the studio; "
            "`make run` does both from a checkout.",
            icon=":material/pause_circle:",
        )


@st.cache_resource(show_spinner=False)  # type: ignore[untyped-decorator]
def _settled() -> dict[str, int]:
    return {"modules": 0}


def settle() -> None:
    """Keep what has been imported out of garbage collection, again whenever a page has imported more.

    Streamlit collects after every run of a script or a live part; walking pandas, SQLAlchemy and Streamlit itself each time
    takes longer than most pages do (benchmarks/pages.py).
    """
    held = _settled()
    if len(sys.modules) > held["modules"]:
        held["modules"] = len(sys.modules)
        gc.freeze()
