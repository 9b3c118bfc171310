"""The queue's statements: submit, what may start next, and what a person asks for. The same SQL on SQLite and PostgreSQL.

Which job may start is decided by the pure functions `choose` and `in_the_way` over the live and the queued rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from sqlalchemy import and_, func, insert, or_
from sqlalchemy import select as sa_select
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from backend.domain.errors import NotFound, NotNow
from backend.domain.jobs.jobs import LIVE, RESUMABLE, TERMINAL, Event, JobState
from backend.store import contents, history, leases
from backend.store.leases import Fenced, Lease
from backend.store.tables import JobRow

SORT = ("yields", "exclusive", "lane")
TRIES = 5
"""How often a person's change is tried against a job that goes on meanwhile."""


def get(session: Session, job_id: str) -> JobRow:
    """The row. Raises NotFound."""
    row = session.get(JobRow, job_id, populate_existing=True)
    if row is None:
        raise NotFound(f"There is no job {job_id}: `whetstone jobs list` shows those that exist.")
    return row


def submit(session: Session, row: JobRow, *, artifacts: Iterable[str] = ()) -> JobRow:
    """Insert a queued row at the end of the queue; the same `submission` key or id again answers with the first row.

    Raises NotFound where one of the artifacts that it names is not there.
    """
    row.rank = (session.exec(select(func.max(JobRow.rank))).one() or 0.0) + 1.0
    try:
        with session.begin_nested():
            session.execute(insert(JobRow), params=[row.model_dump()])
    except IntegrityError:
        same = select(JobRow).where(or_(col(JobRow.id) == row.id, col(JobRow.submission) == row.submission))
        return session.exec(same).one()
    contents.use(session, row.id, artifacts)
    return get(session, row.id)


def claimable(session: Session, host: str) -> JobRow | None:
    """The queued job that may start now on that host, or None."""
    return choose(*_rows(session, host))


def yielding(session: Session, host: str) -> list[JobRow]:
    """The live jobs of that host that have to make room now for a person's own."""
    return in_the_way(*_rows(session, host))


def any_queued(session: Session) -> bool:
    return session.exec(select(JobRow.id).where(JobRow.state == JobState.QUEUED).limit(1)).first() is not None


def _rows(session: Session, host: str) -> tuple[Sequence[JobRow], Sequence[JobRow]]:
    """Live rows of the host, and of the queued ones, in their order, the first of each sort, before which no other could start.

    What yields stands behind all else.
    """
    live = session.exec(select(JobRow).where(col(JobRow.state).in_(LIVE), JobRow.host == host)).all()
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


def make_room(session: Session, row: JobRow) -> None:
    """Have a running job that yields stopped, to be queued again: it is being cancelled and nobody asked for that."""
    leases.move(session, leases.lease(row), JobState.CANCELLING)


def is_making_room(row: JobRow) -> bool:
    """Whether it is being stopped only to be queued again. A person's cancel, asked for meanwhile, counts more."""
    return row.state == JobState.CANCELLING and row.yields and not row.cancel_requested


def put_back(session: Session, held: Lease) -> JobState:
    """Queue a live job again whose worker has gone, under its id and in its old place; cancelled where a person asked for it."""
    row = get(session, held.job)
    leases.move(session, held, JobState.CANCELLED)
    if row.cancel_requested:
        return JobState.CANCELLED
    leases.requeue(session, held)
    return JobState.QUEUED


def request_cancel(session: Session, job_id: str, cause: str) -> JobRow:
    """A queued job is cancelled at once; a live one is asked to stop. `cause`: who or what asked.

    Raises NotNow when it has ended.
    """
    for _ in range(TRIES):
        row = get(session, job_id)
        state = JobState(row.state)
        if state in TERMINAL:
            raise NotNow(f"Job {job_id} has ended already ({state}).")
        with suppress(Fenced):
            if state is JobState.QUEUED:
                leases.move(session, leases.lease(row), JobState.CANCELLED, cause=cause)
            elif not row.cancel_requested:
                leases.change(session, leases.lease(row), LIVE, cancel_requested=True, cause=cause)
            history.append(session, job_id, [Event(kind="state", message=f"Cancel asked for by {cause}.")])
            break
    return get(session, job_id)


def requeue(session: Session, job_id: str) -> JobRow:
    """Resume under the same id. Raises NotNow unless failed, cancelled or lost."""
    row = get(session, job_id)
    if JobState(row.state) not in RESUMABLE:
        raise NotNow(f"Job {job_id} is {row.state}: only failed, cancelled and lost jobs can be resumed.")
    with suppress(Fenced):  # somebody else resumed it just now
        leases.requeue(session, leases.lease(row))
    return get(session, job_id)


def lose_restored(session: Session) -> int:
    """Jobs that ran when a backup was made: nobody has them, so each is lost, to be resumed. How many."""
    rows = session.exec(select(JobRow).where(col(JobRow.state).in_(LIVE))).all()
    told = "It ran when the backup was made that it was restored from: resume it."
    for row in rows:
        leases.move(session, leases.lease(row), JobState.LOST, error=told, handle=None, supervisor=None, cancel_requested=False)
        history.append(session, row.id, [Event(kind="state", message=told, data={"state": str(JobState.LOST)})])
    return len(rows)


def move_to_front(session: Session, job_id: str) -> JobRow:
    """Give a queued job the lowest rank; one that yields is the person's own from then on. Raises NotNow unless queued."""
    row = get(session, job_id)
    lowest = session.exec(select(func.min(JobRow.rank)).where(JobRow.state == JobState.QUEUED)).one()
    try:
        leases.change(session, leases.lease(row), (JobState.QUEUED,), rank=(lowest or 0.0) - 1.0, yields=False)
    except Fenced:
        raise NotNow(f"Job {job_id} is {get(session, job_id).state}: only queued jobs can be moved.") from None
    return get(session, job_id)


def by_submission(session: Session, keys: Iterable[str]) -> dict[str, JobRow]:
    """Submission key -> job, of those there are."""
    found = session.exec(select(JobRow).where(col(JobRow.submission).in_(list(keys))))
    return {str(row.submission): row for row in found}
