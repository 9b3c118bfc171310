"""Draw an engine as a card: what it is, what it can do here or why not, and its installation or removal."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from app import idempotency, navigation
from app.formatting import ago, message, plain
from app.hardware.machine_rows import available_action, engine_line, is_removable, last_failure, why_not
from app.jobs.cards import cancel_button
from app.jobs.job_text import progress_text
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.roles import Action
from backend.service import Workspace
from backend.service.jobs.jobs import JobView
from backend.service.machines import engines
from backend.service.machines.engines import EngineStatus

PURPOSE = "engine"


def show_card(opened: Workspace, engine: EngineStatus, last: JobView | None) -> None:
    """Draw the card. `last` is the newest job that installed or removed the engine."""
    # State, and what can be done now: watch the running job, or install and remove.
    busy = last if last is not None and not last.ended else None
    with st.container(border=True, key=f"hardware_engine-{engine.name}"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{plain(engine.name)}** · {engine_line(engine)}", width="stretch")
            if busy:
                navigation.link("job", "Log", ":material/work:", id=busy.id)
                cancel_button(opened, busy)
            else:
                _buttons(opened, engine, last)
        # Progress, or why the last job failed.
        if busy:
            st.progress(min(1.0, busy.progress or 0.0), text=f"{plain(busy.title)}: {progress_text(busy)}")
        elif last is not None and (error := last_failure(last, installed=engine.installed)):
            st.error(f"{plain(last.title)}, {ago(last.finished_at)}: {message(error)}", icon=":material/error:")
            navigation.link("job", "See the log", ":material/work:", id=last.id)
        # What the engine is for, what it needs, and what this machine lacks.
        st.markdown(f"For: {plain(engine.purpose)}.  \nNeeds: {message(engine.hardware)}.")
        if engine.can:
            st.caption(plain(f"{'Can do' if engine.installed else 'Could do'} here: {engine.can}"))
        if reason := why_not(engine):
            st.caption(f":material/block: {message(reason)}")


def _buttons(opened: Workspace, engine: EngineStatus, last: JobView | None) -> None:
    # Install, or install again.
    after = last.id if last else "none"
    verb = available_action(engine)
    if verb:
        st.button(
            verb,
            key=f"hardware_install-{engine.name}",
            icon=":material/download:",
            type="secondary" if engine.installed else "primary",
            on_click=_submit,
            args=(opened, engines.install, engine.name, after),
            **disabled_unless_allowed(opened),
        )
    # Remove, after a question.
    if engine.installed and is_removable(engine.name) and not opened.read_only:
        with st.popover("Remove", icon=":material/delete:", key=f"hardware_ask-remove-{engine.name}"):
            st.markdown("Delete this environment? It can be installed again, which downloads it again.")
            st.button(
                "Yes, remove it",
                key=f"hardware_remove-{engine.name}",
                on_click=_submit,
                args=(opened, engines.remove, engine.name, after),
                **disabled_unless_allowed(opened, Action.REMOVE_ENGINE),
            )


def _submit(opened: Workspace, verb: Callable[..., JobView], name: str, after: str) -> None:
    """Submit one job per click, however fast it is repeated; a refusal is shown and changes nothing."""
    purpose = f"{PURPOSE}-{name}"
    try:
        job = verb(opened, name, submission=idempotency.submission_key(purpose, f"{verb.__name__} after {after}"))
    except WhetstoneError as error:
        st.toast(message(error), icon=":material/error:")
        return
    st.toast(plain(f"{job.title}: queued as {job.id}."), icon=":material/check_circle:")
