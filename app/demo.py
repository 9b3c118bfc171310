"""The demo on Home: start it, show its progress, stop it, and say what it waits for."""

from __future__ import annotations

import streamlit as st

from app import navigation, shell
from app.formatting import message
from app.session import disabled_unless_allowed
from backend.domain.figures import listed
from backend.domain.roles import Action
from backend.service import Workspace
from backend.service.jobs import jobs, supervisors
from backend.service.studio import demo_model, engine_setup, first_run
from backend.service.studio.first_run import FirstRun

ABOUT = "It tries what can be faster on this processor and measures it against the original. This takes some minutes."
DUE = ":material/waving_hand: **Demo**, started because this is a first run."
SEARCHING = f"It looks where {demo_model.NAME} can be fetched."
FETCHES = f"It fetches {demo_model.NAME}, once."
YIELDS = "Your own jobs go first."
OFFER = (
    f"A real language model, **{demo_model.NAME}**, is fetched once (95 to 270 MB), made smaller and faster, and "
    "measured against the original. Without network the small model that comes with Whetstone takes its place."
)

UNDER_WAY = "The demo is running. Its results appear at the top of this page."


def show_start(opened: Workspace) -> None:
    """Draw the demo as a way to start: run it, continue it, or view its results."""
    # 1. The state of the demo.
    st.markdown("#### :material/rocket_launch: The demo")
    run = first_run.status(opened)
    under_way = run is not None and run.state in {"active", "waiting"}
    if under_way or is_about_to_begin(opened):
        st.markdown(UNDER_WAY)
    elif run is None or run.why is None:
        st.markdown(OFFER)
    else:
        st.markdown(message(run.why))
    # 2. Its next step.
    if run is not None and run.state == "done":
        navigation.link("evaluate", "View results", ":material/speed:", id=str(run.job.result["evaluation"]))
    elif run is not None and under_way:
        navigation.link("job", "Watch the job", ":material/open_in_full:", id=run.job.id)
    elif not is_about_to_begin(opened):
        label = "Continue the demo" if run else "Run the demo"
        if st.button(
            label,
            icon=":material/play_arrow:",
            shortcut="Alt+S",
            key="home_demo",
            **disabled_unless_allowed(opened),
        ):
            with shell.errors_on_page():
                with st.spinner("Looking for the model…"):
                    job = first_run.start(opened)
                navigation.go("job", id=job.id)


def is_active(opened: Workspace) -> bool:
    """Tell whether the demo is running, waiting or about to begin."""
    run = first_run.status(opened)
    return is_about_to_begin(opened) if run is None else run.state in {"active", "waiting"}


def is_about_to_begin(opened: Workspace) -> bool:
    """Tell whether the studio is looking for the model of the first step."""
    return first_run.is_due(opened) and supervisors.is_alive(opened, own=True)


def show_failed_installations(opened: Workspace) -> tuple[str, ...]:
    """Draw a sentence for each engine of a first start that could not be installed. Return their jobs."""
    failed = engine_setup.find_failed(opened)
    for name, job in failed.items():
        st.error(
            f"{engine_setup.NAMES[name]} could not be installed: {message(job.error or '')}", icon=":material/error:"
        )
        navigation.link("hardware", "Install it again", ":material/memory:")
    return tuple(job.id for job in failed.values())


def show_notice(opened: Workspace) -> str | None:
    """Draw the state of the demo. Return what makes the page follow a change; None if there is nothing to say."""
    run = first_run.status(opened)
    if run is None and is_about_to_begin(opened):
        with st.container(border=True, key="home_demo-box"):
            st.markdown(DUE)
            st.caption(f"{SEARCHING} {ABOUT} {YIELDS}")
        return "due"
    if run is None or run.state in {"done", "stopped"}:
        return None
    if run.state == "failed" and jobs.count(opened) > run.number:  # who has started something else needs no word of it
        return None
    with st.container(border=True, key="home_demo-box"):
        if run.state == "failed":
            _show_failure(run)
        else:
            _show_progress(opened, run)
    return f"{run.state} {run.number} {run.obstacle} {run.awaited}"


def _show_failure(run: FirstRun) -> None:
    why = run.job.error or f"Its job is {run.job.state}."
    st.markdown(f":material/error: **The demo ended** at step {run.number} of {run.steps}.  \n{message(why)}")
    navigation.link("job", "Open the job to resume it", ":material/open_in_full:", id=run.job.id)


def _show_progress(opened: Workspace, run: FirstRun) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        why = ", started because this is a first run" if run.job.yields else ""
        current = run.number + (run.state == "waiting")
        st.markdown(f":material/waving_hand: **Demo, step {current} of {run.steps}**{why}.", width="stretch")
        if run.state == "active" and run.job.yields:
            _stop_button(opened, run)
    if run.obstacle:
        st.warning(f"The next step waits: {message(run.obstacle)}", icon=":material/hourglass_empty:")
        navigation.link("hardware", "Engines and disk", ":material/memory:")
    elif run.awaited:
        st.caption(f"It measures as soon as {listed(run.awaited)} is installed: the installation is shown below.")
    else:
        st.caption(" ".join([message(run.why or FETCHES), ABOUT, *([YIELDS] if run.job.yields else [])]))


def _stop_button(opened: Workspace, run: FirstRun) -> None:
    options = disabled_unless_allowed(opened, Action.CANCEL, run.job.owner)
    with st.popover("Stop the demo", icon=":material/cancel:", key="home_ask-stop-demo", **options):
        st.markdown("Stop the demo? Everything it made remains. Resume its job later to continue.")
        st.button("Yes, stop it", key="home_stop-demo", on_click=_stop, args=(opened,))


def _stop(opened: Workspace) -> None:
    with shell.errors_in_toast():
        first_run.stop(opened)
