"""The servers of the playground, by the state of their job: not started, waiting, loading, running, stopped, failed."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st

from app import idempotency, navigation, quality_confirmation, shell
from app.formatting import ago, message, plain, seconds
from app.jobs.cards import cancel_button
from app.jobs.job_text import elapsed, headline, progress_text
from app.playground.pair_choice import Pair, write_pair
from app.session import disabled_unless_allowed
from backend.domain.errors import WhetstoneError
from backend.domain.jobs.jobs import JobKind, JobState
from backend.domain.roles import Action
from backend.present.words import engines
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import variants
from backend.service.serving import chat_servers, playground, serve
from backend.service.serving.chat_servers import ReadyTime
from backend.service.serving.serve import ServedVariant

PURPOSE = "playground"


def ready_servers(opened: Workspace, pair: Pair) -> list[ServedVariant] | None:
    """Draw the state of the servers. Return the server of each model, or None until all are ready."""
    sources = [source for _, source in pair if not serve.is_address(source)]
    if not sources:
        return _foreign_servers(opened, pair)
    job = serve.find_latest(opened, sources)
    if job is None or job.ended:
        _show_start(opened, pair, job)
        return None
    served_variants = serve.endpoints(opened, job.id)
    drawn = _state_of(job, is_up=bool(served_variants))
    shell.live(f"playground-{job.id}", lambda: _panel(opened, job.id), active=True, drawn=drawn)
    servers = {served.source: served for served in served_variants}
    if job.state is not JobState.RUNNING or job.cancel_requested or not servers:
        return None
    others = _foreign_servers(opened, [named for named in pair if named[1] not in servers])
    return None if others is None else [servers.get(source) or others.pop(0) for _, source in pair]


def has_chat_templates(opened: Workspace, pair: Pair) -> bool:
    """Tell whether no model is known to lack a chat template; for a foreign server the first question shows it."""
    folders = [_model_folder(opened, source) for _, source in pair]
    return bool(pair) and all(playground.has_chat_template(folder) is not False for folder in folders)


def _model_folder(opened: Workspace, source: str) -> str | None:
    try:
        return variants.resolve(opened, source).model_path
    except WhetstoneError:
        return None


def _foreign_servers(opened: Workspace, pair: Pair) -> list[ServedVariant] | None:
    """Return servers that somebody else runs; None, after showing why, if one of them may not be called."""
    try:
        return [_foreign_server(opened, source) for _, source in pair]
    except WhetstoneError as error:
        st.error(message(error), icon=":material/block:")
        return None


def _foreign_server(opened: Workspace, url: str) -> ServedVariant:
    """Return a server by its address. Raises RequestError if that may not be called."""
    variant = variants.resolve(opened, url)
    return ServedVariant(
        source=url, name=url, url=variant.url or url, served_name=variant.served_name or "", ready_seconds=0.0
    )


def _show_start(opened: Workspace, pair: Pair, last: JobView | None) -> None:
    """Show how the last servers ended, and the start button."""
    # 1. How the last servers ended.
    if last is not None:
        _show_end(last)
    # 2. What can start: without memory for both, the second alone.
    chosen: Pair = pair
    left_out: str | None = None
    with suppress(WhetstoneError):  # the start itself says what is wrong with the second
        planned = chat_servers.plan_servers(opened, [source for _, source in pair])
        chosen, left_out = [named for named in pair if named[1] in planned.sources], planned.left_out
    if left_out is not None:
        st.info(message(left_out), icon=":material/memory:")
    # 3. The button, with what a start takes.
    sources = sorted(source for _, source in chosen if not serve.is_address(source))
    mark = f"{','.join(sources)} after {last.id if last else 'none'}"
    label = "Start both" if len(sources) > 1 else "Start it"
    if left_out is not None:
        label = f"Start {chosen[0][0]} alone"
    anyway = quality_confirmation.confirm(opened, sources, "start")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            label if last is None else f"{label} again",
            type="primary",
            icon=":material/play_arrow:",
            key="playground_start",
            shortcut="Alt+S",
            on_click=_start,
            args=(opened, chosen, mark, anyway),
            **disabled_unless_allowed(opened),
        )
        ready = chat_servers.find_ready_time(opened, sources)
        expected = f"{_ready_sentence(ready)} " if ready else ""
        about = message(f"The time is {ready.basis}.") if ready else None
        st.caption(f"{expected}They run on this machine only, and {_idle_stop(serve.IDLE_MINUTES)}.", help=about)
    if refused := st.session_state.pop("playground_refused", None):
        st.error(message(refused), icon=":material/error:")


def _ready_sentence(ready: ReadyTime) -> str:
    return f"Ready in {engines.expected_words(ready.seconds)}, {ready.short_basis}."


def _show_end(last: JobView) -> None:
    """Show an orderly end as a line, a failure as a sentence with a link to its log."""
    since = ago(last.finished_at)
    if last.state in {JobState.FAILED, JobState.LOST}:
        st.error(f"The servers ended {since}: {message(last.error or 'no reason is known.')}", icon=":material/error:")
        navigation.link("job", "See the log", ":material/work:", id=last.id)
    elif last.state is JobState.CANCELLED:
        st.info(f"Loading was cancelled {since}.", icon=":material/stop_circle:")
    else:
        st.info(
            message(f"{last.result.get('summary', 'The servers were stopped.')} That was {since}."),
            icon=":material/stop_circle:",
        )


def _start(opened: Workspace, pair: Pair, mark: str, anyway: bool) -> None:
    write_pair(pair)
    with shell.errors_in_session("playground_refused"):
        job = serve.start(
            opened, [source for _, source in pair], submission=idempotency.submission_key(PURPOSE, mark), anyway=anyway
        )
        idempotency.remember_job(PURPOSE, job.id)


def _panel(opened: Workspace, job_id: str) -> tuple[str, bool, bool]:
    """Draw the job while it is active. Return what makes the page follow a change."""
    job = jobs.show(opened, job_id)
    up = bool(serve.endpoints(opened, job_id))
    with st.container(border=True):
        if job.state is JobState.CANCELLING or job.cancel_requested:
            st.markdown(":material/hourglass_bottom: Stopping the servers")
        elif job.state is JobState.RUNNING and up:
            _show_running(opened, job)
        else:
            _show_loading(opened, job)
    return _state_of(job, is_up=up)


def _state_of(job: JobView, *, is_up: bool) -> tuple[str, bool, bool]:
    return str(job.state), is_up, job.cancel_requested


def _show_loading(opened: Workspace, job: JobView) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(headline(job), width="stretch")
        navigation.link("job", "Phases and log", ":material/work:", id=job.id)
        cancel_button(opened, job)
    left = chat_servers.find_time_left(opened, job)
    st.progress(min(1.0, job.progress or 0.0), text=progress_text(job, left=left is None))
    if job.state is not JobState.QUEUED:
        if left is not None:
            st.caption(_ready_sentence(left), help=message(f"The time is {left.basis}."))
        return
    for other in serve.jobs_in_the_way(opened):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f":material/schedule: It waits for **{plain(other.title)}**.", width="stretch")
            if other.kind == JobKind.SERVE:
                _stop_button(opened, other, "Stop those servers")


def _show_running(opened: Workspace, job: JobView) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(
            f":material/check_circle: **{plain(job.title)}** · running for {seconds(elapsed(job))}", width="stretch"
        )
        navigation.link("job", "Job and log", ":material/work:", id=job.id)
        _stop_button(opened, job, "Stop the servers")
    behind = serve.count_waiting(opened)
    waits = (
        f"**{behind} {'job waits' if behind == 1 else 'jobs wait'} for them to stop.**"
        if behind
        else "Other jobs wait."
    )
    idle = float(jobs.specification(opened, job.id)["idle_minutes"])
    st.caption(f"{waits} They {_idle_stop(idle)}.")


def _idle_stop(minutes: float) -> str:
    return f"stop by themselves after {minutes:g} idle minutes"


def _stop_button(opened: Workspace, job: JobView, label: str) -> None:
    options = disabled_unless_allowed(opened, Action.CANCEL, job.owner)
    key = f"playground_stop-{job.id}"
    st.button(label, icon=":material/stop_circle:", key=key, on_click=_stop, args=(opened, job.id), **options)


def _stop(opened: Workspace, job_id: str) -> None:
    with shell.errors_in_toast():
        jobs.cancel(opened, job_id)
