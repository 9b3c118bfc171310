"""The parts of a job's page that all kinds have: buttons, progress, log and specification."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from app import navigation, shell
from app.formatting import ago, dashed, message, plain, seconds, size
from app.jobs import end_tiles, kind_views, resource_panel
from app.jobs.cards import VERBS, perform, permission
from app.jobs.job_text import (
    elapsed,
    log_lines,
    main_verb,
    phase_rows,
    progress_text,
    rate_text,
    tab_words,
    time_left,
    verbs,
    warnings,
)
from app.overview import tiles
from app.session import disabled_unless_allowed
from backend.domain.figures import counted
from backend.domain.jobs.kinds import KINDS
from backend.domain.roles import Action
from backend.present.words.headline import Tile
from backend.service import Workspace
from backend.service.jobs import jobs, view_cache
from backend.service.jobs.jobs import JobView

LOG_TAIL = 200_000
PHASES_HEIGHT = 276
"""Pixels: five phases have room, more are scrolled."""
DROP = ":material/delete:"


def show_next_step(opened: Workspace, job: JobView, specification: dict[str, Any]) -> None:
    """Draw the one primary button for the state of the job."""
    verb, step = main_verb(job), kind_views.find_next_step(opened, job, specification)
    # As wide as its place from the start: a button that finds its width late would move.
    appearance: dict[str, Any] = {"type": "primary", "shortcut": "Alt+E", "width": "stretch"}
    if verb and _button(opened, verb, job, **appearance):
        _perform(opened, verb, job)
    if step and st.button(step.label, icon=step.icon, key="job_next-step", **appearance):
        navigation.go(step.page, **step.params)


def _button(opened: Workspace, verb: str, job: JobView, **appearance: Any) -> bool:
    options = {"help": VERBS[verb].help, **permission(opened, verb, job), **appearance}
    return bool(st.button(verb, key=f"job-{verb}", icon=VERBS[verb].icon, **options))


def _perform(opened: Workspace, verb: str, job: JobView) -> None:
    if after := perform(opened, verb, job.id):
        navigation.go("job", id=after.id)


def show_other_verbs(opened: Workspace, job: JobView) -> None:
    """Draw the other actions."""
    for verb in verbs(job):
        if verb != main_verb(job) and _button(opened, verb, job):
            _perform(opened, verb, job)


def show_saved_work(opened: Workspace, job: JobView) -> None:
    """Show the saved work of an ended job, from which it can be resumed, and a button that deletes it."""
    bytes_saved = jobs.checkpoint_bytes(opened, job.id) if job.ended else 0
    if not bytes_saved:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="job_kept"):
        st.caption(f"It has {size(bytes_saved)} of saved work, from which `Resume` continues.")
        options = {"help": "After that, a resumed job starts from the beginning. Its record and log remain."}
        options |= disabled_unless_allowed(opened, Action.DROP_KEPT, job.owner)
        st.button(
            f"Drop {size(bytes_saved)}", key="job-drop", icon=DROP, on_click=_drop, args=(opened, job.id), **options
        )


def _drop(opened: Workspace, job_id: str) -> None:
    with shell.errors_in_toast():
        st.toast(f"{size(jobs.drop_checkpoints(opened, job_id))} freed.", icon=DROP)


def show_progress(opened: Workspace, job_id: str) -> str:
    """Draw what changes while the job runs; of an ended one where it ran. Return its state, so that the page follows a
    change."""
    # 1. Read the job.
    now, _, progress = view_cache.read_snapshot(opened, job_id)
    navigation.name_tab(tab_words(now))
    where = f"{'Ran' if now.ended else 'Runs'} on {now.place}. " if now.place else ""
    if now.ended:
        if where:
            st.caption(where)
        return str(now.state)
    # 2. Draw progress and figures.
    left, spent = view_cache.read_time_and_cost(opened, now)
    figures = [Tile("Elapsed", seconds(elapsed(now)))]
    st.progress(min(1.0, now.progress or 0.0), text=progress_text(now, left=False))
    if not KINDS[now.kind].open_ended:
        figures.append(Tile("Time left", dashed(time_left(now, left)[0])))
    if spent:
        label, value, detail = end_tiles.cost_figure(now, spent)
        figures.append(Tile(label, value, detail or ""))
    figures += [Tile("Attempt", str(now.attempt)), Tile("Last event", ago(now.event_at))]
    tiles.show_rows(figures, shell.TILES_IN_ROW)
    # 3. Say where it runs and how fast.
    st.caption(f"{where}Rate: {rate_text(progress) or 'not counted in this phase'}")
    return str(now.state)


def show_phases(opened: Workspace, job_id: str) -> str:
    """Draw the warnings and phases of a running job. Return its state."""
    now, events, _ = view_cache.read_snapshot(opened, job_id)
    if not KINDS[now.kind].open_ended:  # in the place of fixed height, since words of changing length would move it
        left, _ = view_cache.read_time_and_cost(opened, now)
        st.caption(f"Time left: {plain(time_left(now, left)[1])}.")
    for warning in warnings(events):
        st.warning(message(warning), icon=":material/warning:")
    rows = phase_rows(now, events)
    if rows:
        alt = "Phases with when each began and how long it took"
        st.dataframe(rows, hide_index=True, height=PHASES_HEIGHT - 56, alt=alt)
    else:
        st.caption("Phases appear here while the job runs.")
    return str(now.state)


def reserve_phases() -> Any:
    """Return a place of fixed height for what a waiting job waits for and the phases of a running one, so that nothing
    below moves."""
    return st.container(height=PHASES_HEIGHT, border=False, key="job_phases")


def show_tabs(opened: Workspace, job: JobView, specification: dict[str, Any]) -> None:
    """Draw the log, the resources, and the details: of an ended job figures and phases, of any job what was
    requested."""
    # 1. A job at AWS uses nothing of this machine.
    measured = not KINDS[job.kind].at_aws
    log, *resources, details = st.tabs(["Log", *(["Resources"] if measured else []), "Details"])
    # 2. Their content.
    with log:
        shell.live("log", lambda: show_log(opened, job.id), active=not job.ended)
    for place in resources:
        with place:
            shell.live("resources", lambda: resource_panel.panel(opened, job.id), active=not job.ended, every="5s")
    with details:
        if job.ended:
            end_tiles.show_details(opened, job)
        show_specification(job.id, specification)


def show_log(opened: Workspace, job_id: str) -> str:
    """Draw the tail of the log with search and download."""
    # 1. Search and download.
    text = jobs.logs(opened, job_id, tail_bytes=LOG_TAIL)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        words = st.text_input("Search the log", key="job_log-words", type="search", max_chars=80, width=320)
        st.download_button(
            "Download",
            lambda: jobs.logs(opened, job_id),
            f"{job_id}.log",
            "text/plain",
            on_click="ignore",
            disabled=not text,
        )
    # 2. The matching lines.
    lines, total = log_lines(text, words or "")
    if lines:
        with st.container(height=320, autoscroll=True):
            st.code(lines, language=None, wrap_lines=True)
        st.caption(
            counted(total, "line") + (f" match “{plain(words)}”" if words else " at the end of the log, newest last")
        )
    else:
        st.caption("No line of the log matches." if text else "The log is empty.")
    return str(view_cache.read_snapshot(opened, job_id).job.state)


def show_specification(job_id: str, specification: dict[str, Any]) -> None:
    """Draw the specification, to read, copy and download."""
    text = json.dumps(specification, indent=2, ensure_ascii=False)
    with st.expander("The specification, frozen when it was submitted", icon=":material/lock:"):
        st.download_button(
            "Download", text, f"{job_id}.json", "application/json", on_click="ignore", key="job_spec-download"
        )
        st.code(text, language=None, wrap_lines=True, height=320)
