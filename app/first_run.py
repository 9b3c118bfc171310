"""What Home says of the starter demo of a first run: what it is, how far, how to stop it, and what it waits for."""

from __future__ import annotations

import streamlit as st

from app import navigation
from app.labels import sentence
from app.words import plain
from backend.domain.errors import WhetstoneError
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.studio import first_run
from backend.service.studio.first_run import FirstRun

ABOUT = (
    "Three recipes are applied to the model that comes with Whetstone, and all are measured against the original: some minutes "
    "in all. Your own jobs go first."
)


def moves(opened: Workspace) -> bool:
    """Whether something of it will change by itself."""
    found = first_run.status(opened)
    return found is not None and found.state in {"active", "waiting"}


def notice(opened: Workspace) -> str | None:
    """Draw it as long as there is something to say; answers with what makes the page around it change, None where nothing."""
    found = first_run.status(opened)
    if found is None or found.state in {"done", "stopped"} or (found.state == "failed" and _was_left(opened, found)):
        return None
    with st.container(border=True, key="home_starter-demo"):
        if found.state == "failed":
            _failed(found)
        else:
            _goes_on(opened, found)
    return f"{found.state} {found.number} {found.obstacle}"


def _was_left(opened: Workspace, found: FirstRun) -> bool:
    """Who has started something else needs no word of a demo that failed."""
    return jobs.count(opened) > found.number


def _failed(found: FirstRun) -> None:
    st.markdown(f":material/error: **The starter demo ended** at step {found.number} of {found.steps}.  \n{_why(found)}")
    navigation.link("job", "What happened, and resume it", ":material/open_in_full:", id=found.job.id)


def _why(found: FirstRun) -> str:
    return plain(found.job.error or f"Its job is {found.job.state}.")


def _goes_on(opened: Workspace, found: FirstRun) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        where = f"Starter demo, step {_current(found)} of {found.steps}"
        st.markdown(f":material/waving_hand: **{where}**, started because this is a first run.", width="stretch")
        if found.state == "active" and found.job.yields:
            _stop_button(opened)
    if found.obstacle:
        st.warning(f"The next step waits: {plain(found.obstacle)}", icon=":material/hourglass_empty:")
        navigation.link("hardware", "Engines and disk", ":material/memory:")
    else:
        st.caption(ABOUT)


def _current(found: FirstRun) -> int:
    return found.number + (found.state == "waiting")


def _stop_button(opened: Workspace) -> None:
    with st.popover("Stop the demo", icon=":material/cancel:", key="home_ask-stop-demo"):
        st.markdown("Stop it here? What it made stays, and nothing more of it is started. Resume its job later to carry it on.")
        st.button("Yes, stop it", key="home_stop-demo", on_click=_stop, args=(opened,))


def _stop(opened: Workspace) -> None:
    try:
        first_run.stop(opened)
    except WhetstoneError as error:
        st.toast(sentence(error), icon=":material/error:")
