"""The queue's statements: submit, claim by compare-and-set, transitions. The same SQL on SQLite and PostgreSQL.

Which job may start is decided by the pure functions `choose` and `in_the_way` over the live and the queued rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from sqlalchemy import CursorResult, and_, func, update
from sqlalchemy import select as sa_select
from sqlmodel import Session, col, select

from backend.domain.errors import NotFound, NotNow
from backend.domain.jobs.jobs import LIVE, RESUMABLE, TERMINAL, TRANSITIONS, JobState
from backend.store.tables import JobRow, SupervisorRow, now

SORT = ("yields", "exclusive", "lane")
HEARTBEAT_SECONDS = 2.0
STALE_SECONDS = 8.0
LOCK = "supervisor.lock"
"""A home's file that its supervisor holds locked, with its pid and start in it."""


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
    """The queued job that may start now, or None."""
    return choose(*_rows(session))


def yielding(session: Session) -> list[JobRow]:
    """The live jobs that have to make room now for a person's own."""
    return in_the_way(*_rows(session))


def _rows(session: Session) -> tuple[Sequence[JobRow], Sequence[JobRow]]:
    """Live rows, and of the queued ones, in their order, the first of each sort: no other of a sort could start before it.

    What yields stands behind all else.
    """
    live = session.exec(select(JobRow).where(col(JobRow.state).in_(LIVE))).all()
    sort = [col(getattr(JobRow, name)) for name in SORT]
    first = (
        sa_select(*sort, func.min(JobRow.rank).label("rank"))
        .where(col(JobRow.state) == JobState.QUEUED)
        .group_by(*sort)
        .subquery()
    )
    same = [col(getattr(JobRow, name)) == first.c[name] for name in (*SORT, "rank")]
    order = (col(JobRow.yields), col(JobRow.rank), col(JobRow.created_at))
    queued = select(JobRow).join(first, and_(*same)).where(JobRow.state == JobState.QUEUED).order_by(*order)
    return live, session.exec(queued).all()


def choose(live: Sequence[JobRow], queued: Sequence[JobRow]) -> JobRow | None:
    """Of rows in queue order, the one that may start beside the live ones, or None.

    A measuring job waits for all others and holds back those behind it, so that it is never starved; one job an accelerator
    at a time; background jobs (installs) run beside accelerator jobs. A job that yields starts only where no other is queued.
    """
    if any(row.exclusive for row in live):
        return None
    busy = {row.lane for row in live}
    for row in [row for row in queued if not row.yields] or queued:
        if row.exclusive:
            return row if not live else None
        if row.lane not in busy:
            return row
    return None


def in_the_way(live: Sequence[JobRow], queued: Sequence[JobRow]) -> list[JobRow]:
    """The live rows that yield and without which a person's own job could start now."""
    wanted = choose([row for row in live if not row.yields], [row for row in queued if not row.yields])
    if wanted is None:
        return []
    return [row for row in live if row.yields and (wanted.exclusive or row.exclusive or row.lane == wanted.lane)]


def make_room(row: JobRow) -> None:
    """Have a live job that yields stopped, to be queued again: it is being cancelled and nobody asked for that."""
    move(row, JobState.CANCELLING)


def is_making_room(row: JobRow) -> bool:
    """Whether it is being stopped only to be queued again. A person's cancel, asked for meanwhile, counts more."""
    return row.state == JobState.CANCELLING and row.yields and not row.cancel_requested


def put_back(session: Session, job_id: str) -> JobRow:
    """Queue a live job again whose worker has gone, under its id and in its old place; cancelled where a person asked for it."""
    row = get(session, job_id)
    move(row, JobState.CANCELLED)
    return row if row.cancel_requested else requeue(session, job_id)


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
    """Give a queued job the lowest rank; one that yields is the person's own from then on. Raises NotNow unless queued."""
    row = get(session, job_id)
    if row.state != JobState.QUEUED:
        raise NotNow(f"Job {job_id} is {row.state}: only queued jobs can be moved.")
    lowest = session.exec(select(func.min(JobRow.rank)).where(JobRow.state == JobState.QUEUED)).one()
    row.rank, row.yields = (lowest or 0.0) - 1.0, False
    return row


def by_submission(session: Session, keys: Iterable[str]) -> dict[str, JobRow]:
    """Submission key -> job, of those there are."""
    found = session.exec(select(JobRow).where(col(JobRow.submission).in_(list(keys))))
    return {str(row.submission): row for row in found}


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
