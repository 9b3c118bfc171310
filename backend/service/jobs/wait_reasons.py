"""Reasons why queued jobs wait: another job, room, a time or a supervisor; and the attempts of a job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from backend.domain.figures import span
from backend.domain.jobs import attempts as history_of
from backend.domain.jobs import queueing
from backend.domain.jobs.attempts import Attempt
from backend.domain.jobs.claims import Capacity
from backend.domain.jobs.jobs import LIVE, JobState
from backend.domain.jobs.queueing import QueueEntry, WaitReason
from backend.service.jobs import supervisors
from backend.service.jobs.jobs import JobView
from backend.service.workspace import Workspace
from backend.store import history, leases, queue
from backend.store.tables import JobRow, SupervisorRow

JOBS_COMPARED = 40
"""Jobs at the front of the queue that are compared with each other; later jobs only learn how many are before them."""


def find_reasons(workspace: Workspace, jobs: Sequence[JobView]) -> dict[str, WaitReason]:
    """Return why each queued job waits, by id; a job that is about to start has no entry."""
    # 1. Read the queue, the running jobs and the supervisors.
    queued = [job for job in jobs if job.state is JobState.QUEUED]
    if not queued:
        return {}
    with workspace.store.read() as session:
        taking = [row for row in leases.list_live_supervisors(session) if not row.draining]
        line = queue.make_entries(queue.list_startable(session, most=JOBS_COMPARED))
        going = history.list_queued(session, list(LIVE))
        live = {row.host: queue.make_entries(job for job in going if job.host == row.host) for row in taking}
        now, waits = leases.clock(session), {}
        # 2. Find the first reason of each job.
        for job in queued:
            why = _waits_for_job(session, job) or _waits_for_time(job, now) or _waits_for_room(job, line, taking, live)
            if why is not None:
                waits[job.id] = why
    # 3. Without a supervisor that is the reason.
    if not taking:
        drained = "The supervisor was drained: `whetstone supervisor start` takes jobs again."
        nobody = WaitReason(
            drained if supervisors.is_drained(workspace) else "No supervisor is running: `whetstone up` starts one."
        )
        waits = {job.id: nobody if job.id not in waits or not waits[job.id].on else waits[job.id] for job in queued}
    return waits


def _waits_for_job(session: Any, job: JobView) -> WaitReason | None:
    first = session.get(JobRow, job.after) if job.after else None
    if first is None or first.state == JobState.SUCCEEDED:
        return None
    return WaitReason(f"It comes after {first.id} ({first.title}), which is {first.state}.", (first.id,))


def _waits_for_time(job: JobView, now: datetime) -> WaitReason | None:
    wait_s = (job.not_before - now).total_seconds() if job.not_before else 0.0
    if wait_s <= 0:
        return None
    why = f", since {job.ending.words}" if job.ending else ""
    return WaitReason(f"It is tried again in {span(max(1.0, round(wait_s)))}{why}.")


def _waits_for_room(
    job: JobView, line: Sequence[QueueEntry], taking: Sequence[SupervisorRow], live: dict[str, list[QueueEntry]]
) -> WaitReason | None:
    """Return why no host has room for the job; None if it may start on one."""
    place = next((number for number, entry in enumerate(line) if entry.id == job.id), None)
    if place is None:
        return WaitReason(f"At least {len(line)} others are before it.")
    reasons = []
    for row in taking:
        capacity = Capacity.model_validate_json(row.capacity)
        reasons.append(queueing.explain_wait(line[place], live[row.host], line[:place], capacity))
    return None if None in reasons or not reasons else reasons[0]


def attempts(workspace: Workspace, job_id: str) -> list[Attempt]:
    """Return the job's attempts in order, each with the cause of its end."""
    with workspace.store.read() as session:
        return history_of.list_attempts(history.list_state_events(session, job_id))
