"""The queue's statements: submit, find the next job to start, and what a person asks for. The same SQL runs on SQLite
and PostgreSQL.

The pure functions of `domain.jobs.queueing` decide over the live and the queued rows which job may start.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, func, insert, or_
from sqlalchemy import select as sa_select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased
from sqlmodel import Session, col, select

from backend.domain.errors import KeyReused, NotFound, NotNow
from backend.domain.figures import span
from backend.domain.jobs import queueing
from backend.domain.jobs.claims import Capacity, Claim
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.jobs import LIVE, RESUMABLE, TERMINAL, Event, JobKind, JobState
from backend.domain.jobs.queueing import QueueEntry
from backend.domain.jobs.terms import Priority, Terms, queue_rank
from backend.store import artifact_contents, history, leases
from backend.store.leases import Fenced
from backend.store.tables import JobRow

SORT = ("yields", "claim")
CANCEL_ATTEMPTS = 5
"""Tries of a person's request to cancel while the job changes."""
ORDER = (col(JobRow.yields), col(JobRow.rank), col(JobRow.created_at))
"""The queue's order: jobs that yield come last."""
FIRST = aliased(JobRow)
"""The job that another comes after."""
SUBMISSION_FIELDS = ("seen", "accepted")
"""Fields of a specification that say when it was submitted, not what it asks for."""


def get(session: Session, job_id: str) -> JobRow:
    """Return the row. Raises NotFound."""
    row = session.get(JobRow, job_id, populate_existing=True)
    if row is None:
        raise NotFound(f"There is no job {job_id}: `whetstone jobs list` shows those that exist.")
    return row


def submit(session: Session, row: JobRow, *, artifacts: Iterable[str] = ()) -> JobRow:
    """Insert a queued row at its place in the queue. A `submission` key or id that exists returns the first row.

    Raises KeyReused if that row's specification differs, NotNow if the job that it follows did not succeed, NotFound if
    an artifact that it names does not exist.
    """
    moment, terms = leases.clock(session), Terms.model_validate_json(row.terms)

    # 1. Give it its place and the end of its time in the queue.
    row.rank = queue_rank(moment.timestamp(), terms.priority)
    first = get(session, row.after) if row.after else None
    if first is not None and first.state in RESUMABLE:
        raise NotNow(f"Job {first.id}, which has to succeed first, is {first.state}: resume it before.")
    if terms.queue_timeout_s and (first is None or first.state == JobState.SUCCEEDED):
        row.queue_until = moment + timedelta(seconds=terms.queue_timeout_s)

    # 2. Insert it, or answer with the job that has the same key.
    try:
        with session.begin_nested():
            session.execute(insert(JobRow), params=[row.model_dump()])
    except IntegrityError:
        same = select(JobRow).where(or_(col(JobRow.id) == row.id, col(JobRow.submission) == row.submission))
        existing = session.exec(same).one()
        if _request_fields(existing.spec) != _request_fields(row.spec):
            raise KeyReused(
                f"Job {existing.id} was submitted with that key and asks for something else: give another key."
            ) from None
        return existing

    # 3. Link the artifacts that it names, so that nobody removes them.
    artifact = history.read_result(first).get("artifact") if first is not None else None
    artifact_contents.link_job(session, row.id, [*artifacts, *([str(artifact)] if artifact else [])])
    return get(session, row.id)


def _request_fields(spec: str) -> dict[str, Any]:
    return {name: value for name, value in json.loads(spec).items() if name not in SUBMISSION_FIELDS}


def find_claimable(session: Session, host: str, capacity: Capacity) -> JobRow | None:
    """Return the queued job that may start now on that host, or None."""
    live, queued = _rows(session, host)
    chosen = queueing.choose_next(make_entries(live), make_entries(queued), capacity)
    return next((row for row in queued if chosen is not None and row.id == chosen.id), None)


def find_jobs_to_stop(session: Session, host: str, capacity: Capacity) -> list[JobRow]:
    """Return the live jobs of that host that must make room now for a person's own job."""
    live, queued = _rows(session, host)
    to_stop = {entry.id for entry in queueing.choose_to_stop(make_entries(live), make_entries(queued), capacity)}
    return [row for row in live if row.id in to_stop]


def make_entries(rows: Iterable[JobRow]) -> list[QueueEntry]:
    return [QueueEntry(row.id, Claim.model_validate_json(row.claim), row.rank, row.yields) for row in rows]


def check_queue(session: Session) -> tuple[bool, bool]:
    """Return whether any job is queued, and whether one of them must be cancelled. A round without either writes
    nothing."""
    waiting = session.exec(select(JobRow.id).where(JobRow.state == JobState.QUEUED).limit(1)).first() is not None
    return waiting, waiting and bool(find_stranded(session))


def _startable(session: Session) -> ColumnElement[bool]:
    """Match jobs that are queued, not waiting for a retry, and whose earlier job has succeeded."""
    done = (col(FIRST.id) == col(JobRow.after), col(FIRST.state) == JobState.SUCCEEDED)
    succeeded = sa_select(col(FIRST.id)).where(*done).exists()
    due = or_(col(JobRow.not_before).is_(None), col(JobRow.not_before) <= leases.clock(session))
    return and_(col(JobRow.state) == JobState.QUEUED, due, or_(col(JobRow.after).is_(None), succeeded))


def _rows(session: Session, host: str) -> tuple[Sequence[JobRow], Sequence[JobRow]]:
    """Return the host's live rows and, in queue order, the first startable row of each sort: no other could start
    before it."""
    live = session.exec(select(JobRow).where(col(JobRow.state).in_(LIVE), JobRow.host == host)).all()
    sort, pinned = [col(getattr(JobRow, name)) for name in SORT], col(JobRow.pinned_host)
    startable = and_(_startable(session), or_(pinned.is_(None), pinned == host))
    first = sa_select(*sort, func.min(JobRow.rank).label("rank")).where(startable).group_by(*sort).subquery()
    same = [col(getattr(JobRow, name)) == first.c[name] for name in (*SORT, "rank")]
    return live, session.exec(select(JobRow).join(first, and_(*same)).where(startable).order_by(*ORDER)).all()


def list_followers(session: Session, job_id: str) -> Sequence[JobRow]:
    """Return the jobs that follow that one."""
    return session.exec(select(JobRow).where(JobRow.after == job_id).order_by(col(JobRow.created_at))).all()


def list_startable(session: Session, *, most: int) -> Sequence[JobRow]:
    """Return the jobs that may start as soon as there is room, in queue order."""
    return session.exec(select(JobRow).where(_startable(session)).order_by(*ORDER).limit(most)).all()


def make_room(session: Session, row: JobRow) -> None:
    """Stop a running job that yields, so that it is queued again: it is `cancelling`, and nobody asked for a cancel."""
    leases.move(session, leases.read_lease(row), JobState.CANCELLING)


def is_making_room(row: JobRow) -> bool:
    """Return whether it is stopped only to be queued again. A cancel that a person asks for meanwhile counts more."""
    return row.state == JobState.CANCELLING and row.yields and not row.cancel_requested


def request_cancel(session: Session, job_id: str, cause: str, ending: Ending = Ending.PERSON) -> JobRow:
    """Cancel a queued job at once, or ask a live one to stop. `cause`: who or what asked.

    Raises NotNow if it has ended.
    """
    # 1. Try again while the job changes under our hands.
    for _ in range(CANCEL_ATTEMPTS):
        row = get(session, job_id)
        state = JobState(row.state)
        if state in TERMINAL:
            raise NotNow(f"Job {job_id} has ended already ({state}).")
        with suppress(Fenced):
            values = {"cause": cause, "ending": ending}
            if state is JobState.QUEUED:
                leases.move(session, leases.read_lease(row), JobState.CANCELLED, error=cancel_sentence(cause), **values)
            elif not row.cancel_requested:
                leases.change(session, leases.read_lease(row), LIVE, cancel_requested=True, **values)
            history.append(session, job_id, [Event(kind="state", message=f"Cancellation requested by {cause}.")])
            break

    # 2. Cancel the jobs that follow it.
    cancel_stranded(session)
    return get(session, job_id)


def cancel_sentence(cause: str) -> str:
    """Return the sentence for a job that was cancelled before it started."""
    return f"Cancelled before it started, by {cause}."


def find_stranded(session: Session) -> Sequence[JobRow]:
    """Return queued jobs whose earlier job ended without success, or which waited too long."""
    ended = sa_select(col(FIRST.id)).where(col(FIRST.id) == col(JobRow.after), col(FIRST.state).in_(RESUMABLE)).exists()
    unmet = and_(col(JobRow.after).is_not(None), ended)
    late = col(JobRow.queue_until) < leases.clock(session)
    return session.exec(select(JobRow).where(JobRow.state == JobState.QUEUED, or_(unmet, late))).all()


def cancel_stranded(session: Session) -> int:
    """Cancel stranded jobs and those that follow them, each with its reason. Return how many."""
    number = 0
    while jobs := find_stranded(session):
        for row in jobs:
            cause, ending = _stranding_cause(session, row)
            with suppress(Fenced, NotNow):
                sentence = cancel_sentence(cause)
                leases.move(
                    session, leases.read_lease(row), JobState.CANCELLED, cause=cause, ending=ending, error=sentence
                )
                history.append(session, row.id, [Event(kind="state", message=sentence, data={"ending": ending})])
            number += 1
    return number


def _stranding_cause(session: Session, row: JobRow) -> tuple[str, Ending]:
    first = get(session, row.after) if row.after else None
    if first is not None and first.state in RESUMABLE:
        became = {JobState.FAILED: "failed", JobState.CANCELLED: "was cancelled"}.get(JobState(first.state), "was lost")
        return f"{first.id}, which had to succeed first and {became}", Ending.DEPENDENCY
    limit = Terms.model_validate_json(row.terms).queue_timeout_s or 0.0
    return f"its queue timeout of {span(limit)}", Ending.QUEUE_TIMEOUT


def begin_waiting(session: Session, job_id: str, artifact: str | None) -> None:
    """Let the followers of a job that succeeded start: their time in the queue begins, and they name its artifact."""
    for row in session.exec(select(JobRow).where(JobRow.after == job_id, JobRow.state == JobState.QUEUED)).all():
        artifact_contents.link_job(session, row.id, [artifact] if artifact else [])
        if limit := Terms.model_validate_json(row.terms).queue_timeout_s:
            until = leases.clock(session) + timedelta(seconds=limit)
            with suppress(Fenced):
                leases.change(session, leases.read_lease(row), (JobState.QUEUED,), queue_until=until)


def release(session: Session, job_id: str) -> JobRow:
    """Give a job that was put aside another try. Raises NotNow if it was not put aside."""
    row = get(session, job_id)
    if not row.aside:
        raise NotNow(f"Job {job_id} was not put aside: there is nothing to release it from.")
    with suppress(Fenced):
        leases.change(session, leases.read_lease(row), RESUMABLE, aside=False, strikes=0)
    return requeue(session, job_id)


def requeue(session: Session, job_id: str) -> JobRow:
    """Resume a job under the same id, with the jobs that were cancelled only because of it.

    Raises NotNow unless it failed, was cancelled or is lost; also if it was put aside, or its earlier job has not
    succeeded.
    """
    # 1. Check that it can be resumed.
    row = get(session, job_id)
    require_no_endpoint(row)
    if JobState(row.state) not in RESUMABLE:
        raise NotNow(f"Job {job_id} is {row.state}: only failed, cancelled and lost jobs can be resumed.")
    if row.aside:
        raise NotNow(f"Job {job_id} was put aside: `whetstone jobs release {job_id}` gives it another try.")
    first = get(session, row.after) if row.after else None
    if first is not None and first.state in RESUMABLE:
        raise NotNow(
            f"Job {job_id} comes after {first.id}, which is {first.state}: resume that, and this one comes with it."
        )

    # 2. Queue it, then its followers.
    limit = Terms.model_validate_json(row.terms).queue_timeout_s
    values: dict[str, Any] = {"retried": 0, "not_before": None}
    values["queue_until"] = leases.clock(session) + timedelta(seconds=limit) if limit and first is None else None
    with suppress(Fenced):  # somebody else resumed it just now
        leases.requeue(session, leases.read_lease(row), **values)
        after = select(JobRow).where(JobRow.after == job_id, JobRow.ending == Ending.DEPENDENCY)
        for follower in session.exec(after.where(JobRow.state == JobState.CANCELLED)).all():
            requeue(session, follower.id)
    return get(session, job_id)


def mark_restored_lost(session: Session) -> int:
    """Mark the jobs that ran when a restored backup was made as lost, so that a person can resume them. Return how
    many."""
    rows = session.exec(select(JobRow).where(col(JobRow.state).in_(LIVE))).all()
    sentence = "It ran when the backup was made that it was restored from: resume it."
    for row in rows:
        leases.move(
            session,
            leases.read_lease(row),
            JobState.LOST,
            error=sentence,
            handle=None,
            supervisor=None,
            cancel_requested=False,
        )
        history.append(session, row.id, [Event(kind="state", message=sentence, data={"state": str(JobState.LOST)})])
    return len(rows)


def hold_restored(session: Session) -> int:
    """Hold the jobs that waited when a restored backup was made until somebody releases them, since whoever made the
    backup chose what they do. Return how many."""
    rows = session.exec(select(JobRow).where(col(JobRow.state) == JobState.QUEUED)).all()
    for row in rows:
        sentence = (
            "It waited when the backup was made that it was restored from: "
            f"`whetstone jobs release {row.id}` lets it run."
        )
        values: dict[str, Any] = {
            "aside": True,
            "strikes": 0,
            "not_before": None,
            "queue_until": None,
            "error": sentence,
        }
        leases.move(session, leases.read_lease(row), JobState.CANCELLED, cause="the restore of a backup", **values)
        history.append(
            session, row.id, [Event(kind="state", message=sentence, data={"state": str(JobState.CANCELLED)})]
        )
    return len(rows)


def require_no_endpoint(row: JobRow) -> None:
    """Raise NotNow for the job of an endpoint, which supervisors give the next one by themselves."""
    if row.kind == JobKind.ENDPOINT:
        name = json.loads(row.spec)["endpoint"]
        raise NotNow(f"Job {row.id} is of an endpoint: `whetstone endpoints start {name}` gives it another one.")


def move_to_front(session: Session, job_id: str) -> JobRow:
    """Give a queued job the lowest rank; it no longer yields. Raises NotNow unless it is queued."""
    lowest = session.exec(select(func.min(JobRow.rank)).where(JobRow.state == JobState.QUEUED)).one()
    return _place(session, get(session, job_id), rank=(lowest or 0.0) - 1.0, yields=False)


def prioritize(session: Session, job_id: str, priority: Priority) -> JobRow:
    """Put a queued job where it would be had it been submitted with that priority.

    Raises NotNow unless it is queued.
    """
    row = get(session, job_id)
    terms = Terms.model_validate_json(row.terms).model_copy(update={"priority": priority})
    return _place(session, row, rank=queue_rank(row.created_at.timestamp(), priority), terms=terms.text)


def _place(session: Session, row: JobRow, **values: Any) -> JobRow:
    try:
        leases.change(session, leases.read_lease(row), (JobState.QUEUED,), **values)
    except Fenced:
        raise NotNow(f"Job {row.id} is {get(session, row.id).state}: only queued jobs can be moved.") from None
    return get(session, row.id)


def find_by_submission(session: Session, keys: Iterable[str]) -> dict[str, JobRow]:
    """Return the jobs that exist by their submission key."""
    jobs = session.exec(select(JobRow).where(col(JobRow.submission).in_(list(keys))))
    return {str(row.submission): row for row in jobs}
