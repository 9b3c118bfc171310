"""Draw jobs as cards with buttons: on Home, on Jobs and on the page of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import streamlit as st

from app import navigation, shell
from app.formatting import message, plain
from app.jobs import sagemaker_panel
from app.jobs.job_text import can_cancel, headline, progress_text, queue_positions, summary, verbs, waiting_reason
from app.session import disabled_unless_allowed, owner_suffix
from backend.domain.jobs.jobs import JobKind, JobState
from backend.domain.jobs.kinds import KINDS
from backend.domain.roles import Action
from backend.service import Workspace
from backend.service.jobs import jobs, wait_reasons
from backend.service.jobs.jobs import JobView

SHOWN = 30


class Verb(NamedTuple):
    """An action on a job. `done` is the message afterwards; `action` is its permission in the service."""

    act: Callable[[Workspace, str], JobView]
    done: str
    icon: str
    help: str | None = None
    action: Action = Action.SUBMIT


VERBS = {
    "Cancel": Verb(jobs.cancel, "{id} is stopping.", ":material/cancel:", action=Action.CANCEL),
    "Move to front": Verb(
        jobs.move_to_front,
        "{id} is next.",
        ":material/vertical_align_top:",
        "Run it before the other waiting jobs.",
        Action.MOVE,
    ),
    "Resume": Verb(
        jobs.resume,
        "{id} is queued again and continues from its saved work.",
        ":material/resume:",
        "Run the same job again, from its saved work.",
        Action.RESUME,
    ),
    "Release": Verb(
        jobs.release,
        "{id} gets another try.",
        ":material/lock_open:",
        "Its worker crashed too often in a row and the job was put aside: give it another try.",
        Action.RELEASE,
    ),
    "Retry": Verb(
        jobs.retry,
        "Queued as {id}.",
        ":material/replay:",
        "A new job with the same specification. This one does not change.",
    ),
    "Clone": Verb(jobs.clone, "Queued as {id}.", ":material/content_copy:", "A new job with the same specification."),
}


def perform(opened: Workspace, verb: str, job_id: str) -> JobView | None:
    """Do it and show a message; a refusal is shown and changes nothing."""
    after: JobView | None = None
    with shell.errors_in_toast():
        after = VERBS[verb].act(opened, job_id)
        st.toast(VERBS[verb].done.format(id=after.id), icon=VERBS[verb].icon)
    return after


def show_end(job: JobView, otherwise: str | None = None) -> None:
    """Show why the job has no result: an error if it failed, an info if somebody cancelled it."""
    words = job.error or otherwise
    if words and job.state is JobState.CANCELLED:
        st.info(message(words), icon=VERBS["Cancel"].icon)
    elif words:
        st.error(message(words), icon=":material/error:")


class CancelWords(NamedTuple):
    """The words of the button that cancels a job: on it before and after the click, the question, the confirmation."""

    label: str
    pending: str
    question: str
    confirmation: str


CANCEL = CancelWords(
    "Cancel",
    "Cancelling",
    "Stop this job? No partial files remain. It can be resumed or retried later.",
    "Yes, cancel it",
)
STOP = CancelWords(
    "Stop", "Stopping", "Stop these servers? Whoever sends them requests gets no more answers.", "Yes, stop"
)
"""Servers run until somebody stops them: that is their normal end."""


def cancel_button(opened: Workspace, job: JobView) -> None:
    """Draw the button that cancels a job, or stops servers, with a confirmation."""
    cancelling, words = not can_cancel(job), STOP if job.kind == JobKind.SERVE else CANCEL
    options = {"icon": VERBS["Cancel"].icon, "disabled": cancelling, **permission(opened, "Cancel", job)}
    with st.popover(words.pending if cancelling else words.label, key=navigation.page_key(f"ask-{job.id}"), **options):
        st.markdown(words.question)
        st.button(
            words.confirmation,
            key=navigation.page_key(f"cancel-{job.id}"),
            on_click=perform,
            args=(opened, "Cancel", job.id),
        )


def permission(opened: Workspace, verb: str, job: JobView) -> dict[str, Any]:
    """Return options that disable a button for a person who may not use it on that job; none if they may."""
    action = VERBS[verb].action
    return disabled_unless_allowed(opened, action, None if action is Action.SUBMIT else job.owner)


def verb_buttons(opened: Workspace, job: JobView) -> None:
    for verb in verbs(job):
        key = navigation.page_key(f"{verb.lower().replace(' ', '-')}-{job.id}")
        st.button(
            verb,
            key=key,
            icon=VERBS[verb].icon,
            on_click=perform,
            args=(opened, verb, job.id),
            **permission(opened, verb, job),
        )


def active_cards(opened: Workspace, job_views: Sequence[JobView]) -> None:
    """Draw the running jobs, then the queue in its order, each with its progress."""
    # The place of each job in the queue, and what it waits for.
    queue, titles = queue_positions(job_views), {job.id: job.title for job in job_views}
    reasons = wait_reasons.find_reasons(opened, job_views[:SHOWN])
    # A card for each: title and buttons, progress, why it waits.
    for job in job_views[:SHOWN]:
        with st.container(border=True, key=navigation.page_key(f"card-{job.id}")):
            with st.container(horizontal=True, vertical_alignment="center"):
                st.markdown(headline(job) + owner_suffix(opened, job.owner), width="stretch")
                navigation.link("job", "Open", ":material/open_in_full:", id=job.id)
                if queue.get(job.id, 1) > 1:
                    verb_buttons(opened, job)
                cancel_button(opened, job)
            st.progress(min(1.0, job.progress or 0.0), text=progress_text(job, queue.get(job.id)))
            if KINDS[job.kind].at_aws and job.state is not JobState.QUEUED:
                st.caption(plain(sagemaker_panel.status_line(opened, job)))
            if job.state is JobState.QUEUED:
                st.caption(waiting_reason(reasons.get(job.id), titles))
    # Long queues are cut.
    if len(job_views) > SHOWN:
        st.caption(f"And {len(job_views) - SHOWN} more in the queue.")


def ended_card(opened: Workspace, job: JobView) -> None:
    """Draw one line of the history with its actions."""
    with st.container(border=True, horizontal=True, vertical_alignment="center", key=f"jobs_ended-{job.id}"):
        st.markdown(f"{headline(job)}  \n:small[{summary(job)}{owner_suffix(opened, job.owner)}]", width="stretch")
        navigation.link("job", "Open", ":material/open_in_full:", id=job.id)
        key = f"jobs_do-{job.id}"
        st.menu_button(
            "Run again",
            verbs(job),
            key=key,
            on_click=_perform_chosen,
            args=(opened, key, job.id),
            **disabled_unless_allowed(opened),
        )


def _perform_chosen(opened: Workspace, key: str, job_id: str) -> None:
    if verb := st.session_state.get(key):
        perform(opened, str(verb), job_id)


def job_states(job_views: Sequence[JobView]) -> tuple[tuple[str, str], ...]:
    """Return the ids and states of jobs, by which the page notices a change."""
    return tuple((job.id, str(job.state)) for job in job_views)
