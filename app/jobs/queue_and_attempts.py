"""The queue and the attempts of a job on its page: priority, what it waits for, neighbours, and tries."""

from __future__ import annotations

from typing import Any

import streamlit as st

from app import navigation, shell
from app.formatting import local_time, message, seconds
from app.jobs.cards import VERBS
from app.jobs.job_text import waiting_reason
from app.session import disabled_unless_allowed
from backend.domain.figures import counted, span
from backend.domain.jobs.attempts import Attempt
from backend.domain.jobs.jobs import JobState
from backend.domain.jobs.terms import Priority
from backend.service import Workspace
from backend.service.jobs import jobs, wait_reasons
from backend.service.jobs.jobs import JobView

PRIORITY = "job_priority"


def panel(opened: Workspace, job: JobView) -> None:
    """Draw what is special about the job; nothing if it just runs or ran, alone and once."""
    _neighbours(opened, job)
    if limits := _limits(job):
        st.caption(limits)
    attempts = wait_reasons.attempts(opened, job.id)
    if job.aside or len(attempts) > 1 or any(attempt.ending for attempt in attempts if not job.ended):
        _attempts(attempts)


def _neighbours(opened: Workspace, job: JobView) -> None:
    after = jobs.find_follower(opened, job.id)
    if job.after or after:
        with st.container(horizontal=True):
            if job.after:
                navigation.link("job", f"After {job.after}", ":material/first_page:", id=job.after)
            if after:
                navigation.link("job", f"Then {after.title}", ":material/last_page:", id=after.id)


def show_queued(opened: Workspace, job: JobView) -> None:
    """Draw what a queued job waits for, and its priority."""
    shell.live("life", lambda: _why(opened, job.id), active=True)
    # The control always shows the job's own priority, also after a change elsewhere or a refusal.
    key, current = f"{PRIORITY}-{job.id}", str(job.terms.priority)
    if st.session_state.get(key) != current:
        st.session_state[key] = current
    st.segmented_control(
        "Priority",
        [str(priority) for priority in Priority],
        key=key,
        required=True,
        on_change=_prioritize,
        args=(opened, job.id, current),
        **{
            "help": "High is a head start of one working day, low the opposite. Low priority still runs.",
            **disabled_unless_allowed(opened),
        },
    )


def _why(opened: Workspace, job_id: str) -> str:
    """Show the reason while the job waits. Return its state."""
    job = jobs.show(opened, job_id)
    if job.state is JobState.QUEUED:
        titles = {active.id: active.title for active in jobs.active(opened)}
        st.info(
            waiting_reason(wait_reasons.find_reasons(opened, [job]).get(job.id), titles),
            icon=":material/hourglass_empty:",
        )
    return str(job.state)


def _prioritize(opened: Workspace, job_id: str, shown: str) -> None:
    """Give the job the chosen priority, unless it is the one that the control has `shown`.

    Streamlit also calls this without a choice: a live part that was already on its way when the control disappeared
    brings the control's value once more, or none.
    """
    # 1. Where nothing changed nothing is done.
    chosen = st.session_state[f"{PRIORITY}-{job_id}"]
    if chosen in {None, shown}:
        return
    # 2. Change it; a job that has begun meanwhile has no use for a priority.
    with shell.errors_in_toast("The job is no longer queued, so its priority does not matter any more."):
        after = jobs.prioritize(opened, job_id, Priority(chosen))
        st.toast(f"It has {after.terms.priority} priority.", icon=VERBS["Move to front"].icon)


def _limits(job: JobView) -> str:
    """Return the terms that a person set, in one sentence."""
    terms = job.terms
    limits = [("waits", terms.queue_timeout_s), ("starts within", terms.start_timeout_s), ("runs", terms.run_timeout_s)]
    parts = [f"{words} at most {span(limit)}" for words, limit in limits if limit]
    if terms.retries is not None:
        parts.append(
            f"is tried again {counted(terms.retries, 'time')} at most" if terms.retries else "is not tried again"
        )
    parts += [f"takes {counted(job.claim.cores, 'core')}"] if terms.cores and job.claim.cores else []
    return f"It {', '.join(parts)}." if parts else ""


def _attempts(attempts: list[Attempt]) -> None:
    with st.expander(f"{len(attempts)} attempts", icon=":material/history:", expanded=True):
        st.dataframe([_row(attempt) for attempt in attempts], hide_index=True, key="job_attempts")
        for attempt in attempts:
            if attempt.ending and attempt.sentence:
                st.caption(f"Attempt {attempt.number}: {message(attempt.sentence)}")


def _row(attempt: Attempt) -> dict[str, Any]:
    took = (attempt.ended - attempt.began).total_seconds() if attempt.began and attempt.ended else None
    ended = "in order" if attempt.ended else "–"
    if attempt.ending:
        ended = attempt.ending.words
    return {
        "Attempt": attempt.number,
        "Began": local_time(attempt.began) if attempt.began else "never",
        "Where": " on ".join(filter(None, (attempt.place, attempt.host))) or "–",
        "Took": seconds(took),
        "Ended": ended,
    }
