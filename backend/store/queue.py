"""The queue's statements: submit, claim by compare-and-set, transitions. The same SQL on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import CursorResult, func, update
from sqlmodel import Session, col, select

from backend.domain.errors import NotFound, NotNow
from backend.domain.jobs import LIVE, RESUMABLE, TERMINAL, TRANSITIONS, JobState
from backend.store.tables import JobRow, SupervisorRow, now

HEARTBEAT_SECONDS = 2.0
STALE_SECONDS = 8.0


def get(session: Session, job_id: str) -> JobRow:
    """The row. Raises NotFound."""
    row = session.get(JobRow, job_id)
    if row is None:
        raise NotFound(f"There is no job {job_id}: `whetstone jobs list` shows those that exist.")
    return row


def submit(session: Session, row: JobRow) -> JobRow:
    """Insert a queued row at the end of the queue; the same `submission` key again answers with the first row."""
    if row.submission is not None:
        earlier = session.exec(select(JobRow).where(JobRow.submission == row.submission)).first()
        if earlier is not None:
            return earlier
    row.rank = (session.exec(select(func.max(JobRow.rank))).one() or 0.0) + 1.0
    session.add(row)
    session.flush()
    return row


def claimable(session: Session) -> JobRow | None:
    """The queued job that may start now, or None.

    A measuring job waits for all others and holds back those behind it, so that it is never starved; one job an accelerator
    at a time; background jobs (installs) run beside accelerator jobs.
    """
    live = session.exec(select(JobRow).where(col(JobRow.state).in_(LIVE))).all()
    if any(row.exclusive for row in live):
        return None
    busy = {row.lane for row in live}
    queued = select(JobRow).where(JobRow.state == JobState.QUEUED).order_by(col(JobRow.rank), col(JobRow.created_at)).limit(50)
    for row in session.exec(queued):
        if row.exclusive:
            return row if not live else None
        if row.lane not in busy:
            return row
    return None


def claim(session: Session, job_id: str, supervisor: str) -> bool:
    """Compare-and-set from queued to starting; False where another was first or it was cancelled meanwhile."""
    statement = (
        update(JobRow)
        .where(col(JobRow.id) == job_id, col(JobRow.state) == JobState.QUEUED)
        .values(state=JobState.STARTING, supervisor=supervisor, started_at=now(), error=None, result=None, cancel_requested=False)
    )
    outcome = session.execute(statement)
    assert isinstance(outcome, CursorResult)
    return outcome.rowcount == 1


def move(row: JobRow, state: JobState) -> None:
    """Change the state by the table of legal transitions. Raises NotNow."""
    if state not in TRANSITIONS[JobState(row.state)]:
        raise NotNow(f"Job {row.id} is {row.state}; it cannot become {state}.")
    row.state = state
    if state in TERMINAL:
        row.finished_at = now()
        row.eta_s = None


def request_cancel(session: Session, job_id: str) -> JobRow:
    """A queued job is cancelled at once; a live one is asked to stop. Raises NotNow when it has ended."""
    row = get(session, job_id)
    state = JobState(row.state)
    if state in TERMINAL:
        raise NotNow(f"Job {job_id} has ended already ({state}).")
    if state is JobState.QUEUED:
        move(row, JobState.CANCELLED)
    else:
        row.cancel_requested = True
    return row


def requeue(session: Session, job_id: str) -> JobRow:
    """Resume under the same id. Raises NotNow unless failed, cancelled or lost."""
    row = get(session, job_id)
    if JobState(row.state) not in RESUMABLE:
        raise NotNow(f"Job {job_id} is {row.state}: only failed, cancelled and lost jobs can be resumed.")
    move(row, JobState.QUEUED)
    row.attempt += 1
    row.handle = row.error = row.result = row.finished_at = row.progress = row.phase = None
    row.cancel_requested = False
    return row


def move_to_front(session: Session, job_id: str) -> JobRow:
    """Give a queued job the lowest rank. Raises NotNow unless queued."""
    row = get(session, job_id)
    if row.state != JobState.QUEUED:
        raise NotNow(f"Job {job_id} is {row.state}: only queued jobs can be moved.")
    lowest = session.exec(select(func.min(JobRow.rank)).where(JobRow.state == JobState.QUEUED)).one()
    row.rank = (lowest or 0.0) - 1.0
    return row


def heartbeat(session: Session, supervisor: SupervisorRow) -> None:
    """Write the supervisor's row anew with the time of now."""
    supervisor.heartbeat_at = now()
    session.merge(supervisor)


def supervisor_alive(session: Session) -> SupervisorRow | None:
    """The supervisor whose heartbeat is fresh, if any."""
    fresh = now() - timedelta(seconds=STALE_SECONDS)
    statement = (
        select(SupervisorRow)
        .where(col(SupervisorRow.heartbeat_at) > fresh, col(SupervisorRow.stopped).is_(False))
        .order_by(col(SupervisorRow.heartbeat_at).desc())
    )
    return session.exec(statement).first()
