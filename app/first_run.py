"""What Home says of the demo: how it begins, which model it runs on, how far it is, how to stop it, and what it waits for."""

from __future__ import annotations

import streamlit as st

from app import navigation, shell
from app.labels import sentence
from app.session import frozen
from app.words import plain
from backend.domain.errors import WhetstoneError
from backend.domain.roles import Action
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.studio import demo_model, first_run
from backend.service.studio.first_run import FirstRun

ABOUT = "What can win on this processor is tried on it, and all is measured against the original: some minutes in all."
FETCHES = f"It fetches {demo_model.NAME}, once."
YIELDS = "Your own jobs go first."
OFFER = (
    f"A real language model, **{demo_model.NAME}**, is fetched once (95 to 270 MB), made smaller and faster, and "
    "measured against the original. Without network the small model that comes with Whetstone takes its place."
)

UNDER_WAY = "It is under way: what came of it will stand at the top of this page."


def way(opened: Workspace) -> None:
    """The demo as a way to start: begin it, go on with it, or see what came of it."""
    st.markdown("#### :material/rocket_launch: The demo")
    found = first_run.status(opened)
    under_way = found is not None and found.state in {"active", "waiting"}
    st.markdown(UNDER_WAY if under_way else OFFER if found is None or found.why is None else plain(found.why))
    if found is not None and found.state == "done":
        navigation.link("evaluate", "See what came of it", ":material/speed:", id=str(found.job.result["evaluation"]))
    elif found is not None and under_way:
        navigation.link("job", "Watch it", ":material/open_in_full:", id=found.job.id)
    else:
        label = "Carry the demo on" if found else "Run the demo"
        if st.button(label, type="primary", icon=":material/play_arrow:", shortcut="Alt+S", key="home_demo", **frozen(opened)):
            _start(opened)


def _start(opened: Workspace) -> None:
    with shell.told():
        with st.spinner("Asking where the model is to be had…"):
            job = first_run.start(opened)
        navigation.go("job", id=job.id)


def moves(opened: Workspace) -> bool:
    """Whether something of it will change by itself."""
    found = first_run.status(opened)
    return found is not None and found.state in {"active", "waiting"}


def notice(opened: Workspace) -> str | None:
    """Draw it as long as there is something to say; answers with what makes the page around it change, None where nothing."""
    found = first_run.status(opened)
    if found is None or found.state in {"done", "stopped"} or (found.state == "failed" and _was_left(opened, found)):
        return None
    with st.container(border=True, key="home_demo-box"):
        if found.state == "failed":
            _failed(found)
        else:
            _goes_on(opened, found)
    return f"{found.state} {found.number} {found.obstacle}"


def _was_left(opened: Workspace, found: FirstRun) -> bool:
    """Who has started something else needs no word of a demo that failed."""
    return jobs.count(opened) > found.number


def _failed(found: FirstRun) -> None:
    st.markdown(f":material/error: **The demo ended** at step {found.number} of {found.steps}.  \n{_why(found)}")
    navigation.link("job", "What happened, and resume it", ":material/open_in_full:", id=found.job.id)


def _why(found: FirstRun) -> str:
    return plain(found.job.error or f"Its job is {found.job.state}.")


def _goes_on(opened: Workspace, found: FirstRun) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        why = ", started because this is a first run" if found.job.yields else ""
        st.markdown(f":material/waving_hand: **Demo, step {_current(found)} of {found.steps}**{why}.", width="stretch")
        if found.state == "active" and found.job.yields:
            _stop_button(opened, found)
    if found.obstacle:
        st.warning(f"The next step waits: {plain(found.obstacle)}", icon=":material/hourglass_empty:")
        navigation.link("hardware", "Engines and disk", ":material/memory:")
    else:
        st.caption(" ".join([plain(found.why or FETCHES), ABOUT, *([YIELDS] if found.job.yields else [])]))


def _current(found: FirstRun) -> int:
    return found.number + (found.state == "waiting")


def _stop_button(opened: Workspace, found: FirstRun) -> None:
    options = frozen(opened, Action.CANCEL, found.job.owner)
    with st.popover("Stop the demo", icon=":material/cancel:", key="home_ask-stop-demo", **options):
        st.markdown("Stop it here? What it made stays, and nothing more of it is started. Resume its job later to carry it on.")
        st.button("Yes, stop it", key="home_stop-demo", on_click=_stop, args=(opened,))


def _stop(opened: Workspace) -> None:
    try:
        first_run.stop(opened)
    except WhetstoneError as error:
        st.toast(sentence(error), icon=":material/error:")
