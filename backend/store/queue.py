"""The queue's statements: submit, what may start next, and what a person asks for. The same SQL on SQLite and
PostgreSQL.

Which job may start is decided by the pure functions of `domain.jobs.queueing` over the live and the queued rows.
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
from backend.domain.jobs.jobs import LIVE, RESUMABLE, TERMINAL, Event, JobState
from backend.domain.jobs.queueing import QueueEntry
from backend.domain.jobs.terms import Priority, Terms, queue_rank
from backend.store import artifact_contents, history, leases
from backend.store.leases import Fenced
from backend.store.tables import JobRow

SORT = ("yields", "claim")
CANCEL_ATTEMPTS = 5
"""How often a person's change is tried against a job that goes on meanwhile."""
ORDER = (col(JobRow.yields), col(JobRow.rank), col(JobRow.created_at))
"""Of the queue: what yields stands behind all else."""
FIRST = aliased(JobRow)
"""The job that another comes after."""
SUBMISSION_FIELDS = ("seen", "accepted")
"""Of a specification, what tells when it was asked and not what."""


def get(session: Session, job_id: str) -> JobRow:
    """The row. Raises NotFound."""
    row = session.get(JobRow, job_id, populate_existing=True)
    if row is None:
        raise NotFound(f"There is no job {job_id}: `whetstone jobs list` shows those that exist.")
    return row


def submit(session: Session, row: JobRow, *, artifacts: Iterable[str] = ()) -> JobRow:
    """Insert a queued row at its place in the queue; the same `submission` key or id again answers with the first row.

    Raises KeyReused where that one's specification is another, NotNow where the job that it is to come after did not
    succeed, NotFound where one of the artifacts that it names is not there.
    """
    at, terms = leases.clock(session), Terms.model_validate_json(row.terms)
    row.rank = queue_rank(at.timestamp(), terms.priority)
    first = get(session, row.after) if row.after else None
    if first is not None and first.state in RESUMABLE:
        raise NotNow(f"Job {first.id}, which has to succeed first, is {first.state}: resume it before.")
    if terms.queue_timeout_s and (first is None or first.state == JobState.SUCCEEDED):
        row.queue_until = at + timedelta(seconds=terms.queue_timeout_s)
    try:
        with session.begin_nested():
            session.execute(insert(JobRow), params=[row.model_dump()])
    except IntegrityError:
        same = select(JobRow).where(or_(col(JobRow.id) == row.id, col(JobRow.submission) == row.submission))
        there = session.exec(same).one()
        if _request_fields(there.spec) != _request_fields(row.spec):
            raise KeyReused(
                f"Job {there.id} was submitted with that key and asks for something else: give another key."
            ) from None
        return there
    made = history.read_result(first).get("artifact") if first is not None else None
    artifact_contents.link_job(session, row.id, [*artifacts, *([str(made)] if made else [])])
    return get(session, row.id)


def _request_fields(spec: str) -> dict[str, Any]:
    return {name: value for name, value in json.loads(spec).items() if name not in SUBMISSION_FIELDS}


def find_claimable(session: Session, host: str, capacity: Capacity) -> JobRow | None:
    """The queued job that may start now on that host, or None."""
    live, queued = _rows(session, host)
    found = queueing.choose_next(make_entries(live), make_entries(queued), capacity)
    return next((row for row in queued if found is not None and row.id == found.id), None)


def find_jobs_to_stop(session: Session, host: str, capacity: Capacity) -> list[JobRow]:
    """The live jobs of that host that have to make room now for a person's own."""
    live, queued = _rows(session, host)
    leaving = {entry.id for entry in queueing.choose_to_stop(make_entries(live), make_entries(queued), capacity)}
    return [row for row in live if row.id in leaving]


def make_entries(rows: Iterable[JobRow]) -> list[QueueEntry]:
    return [QueueEntry(row.id, Claim.model_validate_json(row.claim), row.rank, row.yields) for row in rows]


def check_queue(session: Session) -> tuple[bool, bool]:
    """Whether any job is queued, and whether one of those is to be cancelled, so that a round of which nothing comes
    writes nothing."""
    waiting = session.exec(select(JobRow.id).where(JobRow.state == JobState.QUEUED).limit(1)).first() is not None
    return waiting, waiting and bool(find_stranded(session))


def _startable(session: Session) -> ColumnElement[bool]:
    """Queued, not to be tried again later, and the job before it has succeeded."""
    done = (col(FIRST.id) == col(JobRow.after), col(FIRST.state) == JobState.SUCCEEDED)
    succeeded = sa_select(col(FIRST.id)).where(*done).exists()
    due = or_(col(JobRow.not_before).is_(None), col(JobRow.not_before) <= leases.clock(session))
    return and_(col(JobRow.state) == JobState.QUEUED, due, or_(col(JobRow.after).is_(None), succeeded))


def _rows(session: Session, host: str) -> tuple[Sequence[JobRow], Sequence[JobRow]]:
    """Live rows of the host, and of those that may start, in queue order, the first of each sort, before which no other
    could."""
    live = session.exec(select(JobRow).where(col(JobRow.state).in_(LIVE), JobRow.host == host)).all()
    sort, startable = [col(getattr(JobRow, name)) for name in SORT], _startable(session)
    first = sa_select(*sort, func.min(JobRow.rank).label("rank")).where(startable).group_by(*sort).subquery()
    same = [col(getattr(JobRow, name)) == first.c[name] for name in (*SORT, "rank")]
    return live, session.exec(select(JobRow).join(first, and_(*same)).where(startable).order_by(*ORDER)).all()


def list_followers(session: Session, job_id: str) -> Sequence[JobRow]:
    """The jobs that come after that one."""
    return session.exec(select(JobRow).where(JobRow.after == job_id).order_by(col(JobRow.created_at))).all()


def list_startable(session: Session, *, most: int) -> Sequence[JobRow]:
    """The jobs that may start as soon as there is room, in queue order."""
    return session.exec(select(JobRow).where(_startable(session)).order_by(*ORDER).limit(most)).all()


def make_room(session: Session, row: JobRow) -> None:
    """Have a running job that yields stopped, to be queued again: it is being cancelled and nobody asked for that."""
    leases.move(session, leases.read_lease(row), JobState.CANCELLING)


def is_making_room(row: JobRow) -> bool:
    """Whether it is being stopped only to be queued again. A person's cancel, asked for meanwhile, counts more."""
    return row.state == JobState.CANCELLING and row.yields and not row.cancel_requested


def request_cancel(session: Session, job_id: str, cause: str, ending: Ending = Ending.PERSON) -> JobRow:
    """A queued job is cancelled at once, a live one is asked to stop. `cause`: who or what asked.

    Raises NotNow when it has ended.
    """
    for _ in range(CANCEL_ATTEMPTS):
        row = get(session, job_id)
        state = JobState(row.state)
        if state in TERMINAL:
            raise NotNow(f"Job {job_id} has ended already ({state}).")
        with suppress(Fenced):
            told = {"cause": cause, "ending": ending}
            if state is JobState.QUEUED:
                leases.move(session, leases.read_lease(row), JobState.CANCELLED, error=cancel_sentence(cause), **told)
            elif not row.cancel_requested:
                leases.change(session, leases.read_lease(row), LIVE, cancel_requested=True, **told)
            history.append(session, job_id, [Event(kind="state", message=f"Cancel asked for by {cause}.")])
            break
    cancel_stranded(session)
    return get(session, job_id)


def cancel_sentence(cause: str) -> str:
    """Of a job that was cancelled before it started, in a sentence."""
    return f"Cancelled before it started, by {cause}."


def find_stranded(session: Session) -> Sequence[JobRow]:
    """Queued jobs whose earlier job ended without success, or which waited longer than they were to."""
    ended = sa_select(col(FIRST.id)).where(col(FIRST.id) == col(JobRow.after), col(FIRST.state).in_(RESUMABLE)).exists()
    unmet = and_(col(JobRow.after).is_not(None), ended)
    late = col(JobRow.queue_until) < leases.clock(session)
    return session.exec(select(JobRow).where(JobRow.state == JobState.QUEUED, or_(unmet, late))).all()


def cancel_stranded(session: Session) -> int:
    """Cancel them, with what comes after them; how many. Each says why."""
    number = 0
    while jobs := find_stranded(session):
        for row in jobs:
            cause, ending = _stranding_cause(session, row)
            with suppress(Fenced, NotNow):
                told = cancel_sentence(cause)
                leases.move(session, leases.read_lease(row), JobState.CANCELLED, cause=cause, ending=ending, error=told)
                history.append(session, row.id, [Event(kind="state", message=told, data={"ending": ending})])
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
    """Jobs after one that has succeeded may start from now on: their time in the queue begins, and they name its
    artifact."""
    for row in session.exec(select(JobRow).where(JobRow.after == job_id, JobRow.state == JobState.QUEUED)).all():
        artifact_contents.link_job(session, row.id, [artifact] if artifact else [])
        if limit := Terms.model_validate_json(row.terms).queue_timeout_s:
            until = leases.clock(session) + timedelta(seconds=limit)
            with suppress(Fenced):
                leases.change(session, leases.read_lease(row), (JobState.QUEUED,), queue_until=until)


def release(session: Session, job_id: str) -> JobRow:
    """Another try for a job that was put aside. Raises NotNow where it was not."""
    row = get(session, job_id)
    if not row.aside:
        raise NotNow(f"Job {job_id} was not put aside: there is nothing to release it from.")
    with suppress(Fenced):
        leases.change(session, leases.read_lease(row), RESUMABLE, aside=False, strikes=0)
    return requeue(session, job_id)


def requeue(session: Session, job_id: str) -> JobRow:
    """Resume under the same id, with the jobs that were cancelled only because of it.

    Raises NotNow unless failed, cancelled or lost; of one put aside, and of one whose earlier job has not succeeded.
    """
    row = get(session, job_id)
    if JobState(row.state) not in RESUMABLE:
        raise NotNow(f"Job {job_id} is {row.state}: only failed, cancelled and lost jobs can be resumed.")
    if row.aside:
        raise NotNow(f"Job {job_id} was put aside: `whetstone jobs release {job_id}` gives it another try.")
    first = get(session, row.after) if row.after else None
    if first is not None and first.state in RESUMABLE:
        raise NotNow(
            f"Job {job_id} comes after {first.id}, which is {first.state}: resume that, and this one comes with it."
        )
    limit = Terms.model_validate_json(row.terms).queue_timeout_s
    fresh: dict[str, Any] = {"retried": 0, "not_before": None}
    fresh["queue_until"] = leases.clock(session) + timedelta(seconds=limit) if limit and first is None else None
    with suppress(Fenced):  # somebody else resumed it just now
        leases.requeue(session, leases.read_lease(row), **fresh)
        after = select(JobRow).where(JobRow.after == job_id, JobRow.ending == Ending.DEPENDENCY)
        for each in session.exec(after.where(JobRow.state == JobState.CANCELLED)).all():
            requeue(session, each.id)
    return get(session, job_id)


def mark_restored_lost(session: Session) -> int:
    """Jobs that ran when a backup was made: nobody has them, so each is lost, to be resumed. How many."""
    rows = session.exec(select(JobRow).where(col(JobRow.state).in_(LIVE))).all()
    told = "It ran when the backup was made that it was restored from: resume it."
    for row in rows:
        leases.move(
            session,
            leases.read_lease(row),
            JobState.LOST,
            error=told,
            handle=None,
            supervisor=None,
            cancel_requested=False,
        )
        history.append(session, row.id, [Event(kind="state", message=told, data={"state": str(JobState.LOST)})])
    return len(rows)


def hold_restored(session: Session) -> int:
    """Jobs that waited when a backup was made: none starts until somebody releases it, since whoever made the backup
    chose what it does. How many."""
    rows = session.exec(select(JobRow).where(col(JobRow.state) == JobState.QUEUED)).all()
    for row in rows:
        told = f"It waited when the backup was made that it was restored from: `whetstone jobs release {row.id}` lets it run."
        values: dict[str, Any] = {"aside": True, "strikes": 0, "not_before": None, "queue_until": None, "error": told}
        leases.move(session, leases.read_lease(row), JobState.CANCELLED, cause="the restore of a backup", **values)
        history.append(session, row.id, [Event(kind="state", message=told, data={"state": str(JobState.CANCELLED)})])
    return len(rows)


def move_to_front(session: Session, job_id: str) -> JobRow:
    """Give a queued job the lowest rank; one that yields is the person's own from then on. Raises NotNow unless
    queued."""
    lowest = session.exec(select(func.min(JobRow.rank)).where(JobRow.state == JobState.QUEUED)).one()
    return _place(session, get(session, job_id), rank=(lowest or 0.0) - 1.0, yields=False)


def prioritize(session: Session, job_id: str, priority: Priority) -> JobRow:
    """Put a queued job where it would stand had it been submitted with that priority. Raises NotNow unless queued."""
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
    """Submission key -> job, of those there are."""
    found = session.exec(select(JobRow).where(col(JobRow.submission).in_(list(keys))))
    return {str(row.submission): row for row in found}
