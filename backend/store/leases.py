"""Decides who may speak for a job: claims of devices, leases with fencing tokens, and every change of a job's state.

A job is claimed once, executed at least once, registered once. A claim is rows whose (host, device) is unique, so that
of two supervisors on one host one gets them. A lease expires by the database's clock; each new owner has a higher
token, and whatever an earlier owner still writes is refused: every change is one UPDATE that names state, attempt and
token, and its row count is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import CursorResult, delete, func, insert, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from backend.domain.errors import NotNow, WorkError
from backend.domain.jobs.claims import Capacity, Claim, allocate
from backend.domain.jobs.jobs import LIVE, TERMINAL, TRANSITIONS, JobState
from backend.domain.roles import Actor
from backend.store import audit, database
from backend.store.database import LeasesRenewed, StateChanged
from backend.store.tables import ClaimRow, JobRow, SupervisorRow

HEARTBEAT_SECONDS = 2.0
STALE_SECONDS = 8.0
LEASE_SECONDS = 30.0
HANDOVER_SECONDS = 600.0
"""Seconds that a supervisor that was stopped in order may be away before another host's gives its jobs up."""
CLOCK = "clock"
LOCK = "supervisor.lock"
"""A home's file that its supervisor holds locked, with its pid and start in it."""


class Fenced(WorkError):
    """The job belongs to another supervisor now, or has gone on: nothing was changed."""


class Lease(NamedTuple):
    """The right to speak for one attempt of a job."""

    job: str
    attempt: int
    token: int


def read_lease(row: JobRow) -> Lease:
    """Return the lease that the row had when it was read."""
    return Lease(row.id, row.attempt, row.token)


def clock(session: Session) -> datetime:
    """Return the database's own time, one for all hosts. It is read once per session, which is short."""
    if CLOCK not in session.info:
        session.info[CLOCK] = _clock(session)
    read: datetime = session.info[CLOCK]
    return read


def _clock(session: Session) -> datetime:
    if session.get_bind().dialect.name == "sqlite":
        text: str = session.execute(select(func.strftime("%Y-%m-%dT%H:%M:%f+00:00", "now"))).scalar_one()
        return datetime.fromisoformat(text)
    moment: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    return moment.astimezone(UTC)


def claim(session: Session, row: JobRow, supervisor: SupervisorRow) -> Lease | None:
    """Claim a queued job for that supervisor, with the units of its host that the job needs.

    Return None if another was first, the job was cancelled meanwhile, or a unit is in use.
    """
    moment, capacity = clock(session), Capacity.model_validate_json(supervisor.capacity)
    # 1. Choose units of the host that are free.
    used_devices = session.exec(select(ClaimRow.device).where(ClaimRow.host == supervisor.host)).all()
    devices = allocate(Claim.model_validate_json(row.claim), capacity, used_devices)
    if devices is None:
        return None
    # 2. Insert the claims and take the row; a unique key decides between two supervisors.
    claim_rows = [{"host": supervisor.host, "device": device, "job_id": row.id} for device in devices]
    lease = Lease(row.id, row.attempt, row.token + 1)
    owner = {"supervisor": supervisor.id, "host": supervisor.host, "home": supervisor.home}
    cleared = dict.fromkeys(("handle", "cause", "error", "result", "ending", "not_before", "queue_until"))
    try:
        with session.begin_nested():
            if claim_rows:
                session.execute(insert(ClaimRow), params=claim_rows)
            change(
                session,
                read_lease(row),
                (JobState.QUEUED,),
                state=JobState.STARTING,
                token=lease.token,
                lease_until=_lease_end(moment),
                cancel_requested=False,
                started_at=moment,
                segment=0,
                **owner,
                **cleared,
            )
    except (IntegrityError, Fenced):
        return None
    # 3. Record the start.
    audit.append(session, _actor(supervisor.id), "start", "job", row.id, f"attempt {row.attempt} on {supervisor.host}")
    database.note(
        session,
        StateChanged(row.id, row.attempt, row.kind, JobState.STARTING, (moment - row.created_at).total_seconds()),
    )
    return lease


def list_devices(session: Session, job_id: str) -> list[str]:
    """Return the units of its host that a live job has."""
    return list(session.exec(select(ClaimRow.device).where(ClaimRow.job_id == job_id)))


def change(session: Session, lease: Lease, states: Iterable[JobState], **values: Any) -> None:
    """Change columns of the job while it is in one of these states, at that attempt, under that token.

    Raises Fenced.
    """
    statement = update(JobRow).where(col(JobRow.id) == lease.job, col(JobRow.attempt) == lease.attempt)
    statement = statement.where(col(JobRow.token) == lease.token, col(JobRow.state).in_(list(states)))
    if _count_changed(session, statement.values(**values)) != 1:
        raise Fenced(f"Job {lease.job} is not this supervisor's any more, or has gone on: nothing was changed.")


def move(session: Session, lease: Lease, state: JobState, **values: Any) -> None:
    """Change the state by the table of legal transitions; a job that is not live any more gives its devices back.

    Raises Fenced, and NotNow where the state cannot become that one.
    """
    row = session.get(JobRow, lease.job, populate_existing=True)
    if row is not None and read_lease(row) == lease and state not in TRANSITIONS[JobState(row.state)]:
        raise NotNow(f"Job {lease.job} is {row.state}; it cannot become {state}.")
    before_it = row.state if row is not None else None
    if state in TERMINAL:
        values = {"finished_at": clock(session), "eta_s": None} | values
    if state not in LIVE:
        values = {"lease_until": None} | values
    change(session, lease, [before for before, after in TRANSITIONS.items() if state in after], state=state, **values)
    if state not in LIVE:  # after it: a change that is refused leaves a job that goes on its devices
        session.execute(delete(ClaimRow).where(col(ClaimRow.job_id) == lease.job))
    if row is not None and row.supervisor and before_it in LIVE and state in TERMINAL:
        audit.append(
            session, _actor(row.supervisor), "end", "job", lease.job, f"{state}. {values.get('error') or ''}".strip()
        )
    if row is not None:
        after_s = (clock(session) - row.started_at).total_seconds() if row.started_at else None
        database.note(session, StateChanged(lease.job, lease.attempt, row.kind, state, after_s, values.get("error")))


def _actor(supervisor: str) -> Actor:
    return Actor(name=supervisor, role=None, origin="supervisor")


def requeue(session: Session, lease: Lease, **values: Any) -> None:
    """Queue the next attempt of a job that did not succeed. Raises Fenced, NotNow."""
    cleared = dict.fromkeys(("handle", "error", "result", "finished_at", "progress", "phase", "cause", "eta_s"))
    move(session, lease, JobState.QUEUED, attempt=lease.attempt + 1, cancel_requested=False, **(cleared | values))


def renew(session: Session, supervisor: SupervisorRow) -> None:
    """Write the supervisor's row with the current time, and renew its leases. A request to drain stays."""
    moment = clock(session)
    _upsert(session, supervisor.model_copy(update={"heartbeat_at": moment, "draining": False}))
    database.note(
        session,
        LeasesRenewed(
            _count_changed(session, update(JobRow).where(*_owned_by(supervisor)).values(lease_until=_lease_end(moment)))
        ),
    )


def adopt(session: Session, supervisor: SupervisorRow) -> None:
    """Take over every live job of that host and home: the caller has the home's file lock, so nobody else has them."""
    here = (col(JobRow.host) == supervisor.host, col(JobRow.home) == supervisor.home, col(JobRow.state).in_(LIVE))
    values = {"supervisor": supervisor.id, "token": JobRow.token + 1, "lease_until": _lease_end(clock(session))}
    _count_changed(session, update(JobRow).where(*here).values(**values))


def drain(session: Session, host: str, home: str) -> int:
    """Ask that home's supervisors to take no new jobs. Return how many there are."""
    there = (col(SupervisorRow.host) == host, col(SupervisorRow.home) == home, col(SupervisorRow.stopped).is_(False))
    return _count_changed(session, update(SupervisorRow).where(*there).values(draining=True))


def latest_supervisor(session: Session, host: str, home: str) -> SupervisorRow | None:
    """Return the supervisor of that home with the latest heartbeat."""
    there = select(SupervisorRow).where(SupervisorRow.host == host, SupervisorRow.home == home)
    return session.exec(there.order_by(col(SupervisorRow.heartbeat_at).desc()).limit(1)).first()


def is_draining(session: Session, supervisor: SupervisorRow) -> bool:
    supervisor_row = session.get(SupervisorRow, supervisor.id, populate_existing=True)
    return supervisor_row is not None and supervisor_row.draining


def hand_over(session: Session, supervisor: SupervisorRow) -> None:
    """Let its jobs go on without it until the next supervisor of its home adopts them."""
    until = clock(session) + timedelta(seconds=HANDOVER_SECONDS)
    _count_changed(session, update(JobRow).where(*_owned_by(supervisor)).values(lease_until=until))
    last = {"heartbeat_at": clock(session), "stopped": True, "draining": is_draining(session, supervisor)}
    session.merge(supervisor.model_copy(update=last))


def list_owned(session: Session, supervisor: SupervisorRow) -> list[JobRow]:
    """Return its live jobs, in queue order."""
    return list(session.exec(select(JobRow).where(*_owned_by(supervisor)).order_by(col(JobRow.rank))))


def list_jobs_by_supervisor(session: Session) -> dict[str, tuple[str, ...]]:
    """Return the live jobs of each supervisor, in queue order."""
    jobs: dict[str, tuple[str, ...]] = {}
    live = select(JobRow.supervisor, JobRow.id).where(col(JobRow.state).in_(LIVE)).order_by(col(JobRow.rank))
    for owner, job in session.exec(live):
        jobs[str(owner)] = (*jobs.get(str(owner), ()), job)
    return jobs


def list_expired(session: Session, supervisor: SupervisorRow) -> list[JobRow]:
    """Return other supervisors' live jobs whose lease has expired."""
    late = (
        col(JobRow.lease_until) < clock(session),
        col(JobRow.state).in_(LIVE),
        col(JobRow.supervisor) != supervisor.id,
    )
    return list(session.exec(select(JobRow).where(*late)))


class ExpiredLeases:
    """Finds leases of other hosts or homes that have expired by two clocks: the database's and this machine's.

    Either clock may be set, so a lease that the database calls expired must stay so for its whole length by this
    machine's clock too.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._since = now, dict[Lease, float]()

    def find_expired(self, rows: Sequence[JobRow]) -> list[JobRow]:
        """Return those of the rows, all expired by the database's clock now, that are expired by both clocks."""
        by_lease, now = {read_lease(row): row for row in rows}, self._now()
        self._since = {lease: self._since.get(lease, now) for lease in by_lease}
        return [by_lease[lease] for lease, since in self._since.items() if now - since > LEASE_SECONDS]


def list_live_supervisors(session: Session) -> list[SupervisorRow]:
    """Return the supervisors whose heartbeat is recent."""
    fresh = clock(session) - timedelta(seconds=STALE_SECONDS)
    statement = select(SupervisorRow).where(
        col(SupervisorRow.heartbeat_at) > fresh, col(SupervisorRow.stopped).is_(False)
    )
    return list(session.exec(statement))


def _owned_by(supervisor: SupervisorRow) -> tuple[Any, ...]:
    return col(JobRow.supervisor) == supervisor.id, col(JobRow.state).in_(LIVE)


def _lease_end(moment: datetime) -> datetime:
    return moment + timedelta(seconds=LEASE_SECONDS)


def _upsert(session: Session, row: SupervisorRow) -> None:
    """Insert or update the row, except that it drains. One statement does it, since the heartbeat's thread and the
    rounds both write the row, and either may be the first."""
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    values = row.model_dump()
    changed = {name: value for name, value in values.items() if name not in {"id", "draining"}}
    session.execute(
        dialect.insert(SupervisorRow).values(**values).on_conflict_do_update(index_elements=["id"], set_=changed)
    )


def _count_changed(session: Session, statement: Any) -> int:
    """Run the statement and return how many rows it changed."""
    outcome = session.execute(statement, execution_options={"synchronize_session": False})
    assert isinstance(outcome, CursorResult)
    return outcome.rowcount
