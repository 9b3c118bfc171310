"""Who may speak for a job: claims of devices, leases with fencing tokens, and every change of a job's state.

A job is claimed once, executed at least once, registered once. A claim is rows whose (host, device) is unique, so that
of two supervisors on one host one gets them. A lease runs out by the database's clock; each new owner has a higher
token, and whatever an earlier one still writes is refused: every change is one UPDATE that names state, attempt and
token, its row count is checked.
"""

from __future__ import annotations

from collections.abc import Iterable
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
"""How long a supervisor that was stopped in order may be away before another host's gives its jobs up."""
CLOCK = "clock"
LOCK = "supervisor.lock"
"""A home's file that its supervisor holds locked, with its pid and start in it."""


class Fenced(WorkError):
    """The job is not this supervisor's any more, or has gone on: nothing was changed."""


class Lease(NamedTuple):
    """The right to speak for one attempt of a job."""

    job: str
    attempt: int
    token: int


def read_lease(row: JobRow) -> Lease:
    """Of the row as it was read."""
    return Lease(row.id, row.attempt, row.token)


def clock(session: Session) -> datetime:
    """The database's own time, one for all hosts; read once a session, which is short."""
    if CLOCK not in session.info:
        session.info[CLOCK] = _clock(session)
    read: datetime = session.info[CLOCK]
    return read


def _clock(session: Session) -> datetime:
    if session.get_bind().dialect.name == "sqlite":
        found: str = session.execute(select(func.strftime("%Y-%m-%dT%H:%M:%f+00:00", "now"))).scalar_one()
        return datetime.fromisoformat(found)
    moment: datetime = session.execute(select(func.clock_timestamp())).scalar_one()
    return moment.astimezone(UTC)


def claim(session: Session, row: JobRow, supervisor: SupervisorRow) -> Lease | None:
    """A queued job for that supervisor, with the units that it needs of the supervisor's host.

    None where another was first, it was cancelled meanwhile, or a unit is taken.
    """
    at, capacity = clock(session), Capacity.model_validate_json(supervisor.capacity)
    held = session.exec(select(ClaimRow.device).where(ClaimRow.host == supervisor.host)).all()
    devices = allocate(Claim.model_validate_json(row.claim), capacity, held)
    if devices is None:
        return None
    taken = [{"host": supervisor.host, "device": device, "job_id": row.id} for device in devices]
    found = Lease(row.id, row.attempt, row.token + 1)
    owner = {"supervisor": supervisor.id, "host": supervisor.host, "home": supervisor.home}
    fresh = dict.fromkeys(("handle", "cause", "error", "result", "ending", "not_before", "queue_until"))
    try:
        with session.begin_nested():
            if taken:
                session.execute(insert(ClaimRow), params=taken)
            change(
                session,
                read_lease(row),
                (JobState.QUEUED,),
                state=JobState.STARTING,
                token=found.token,
                lease_until=_lease_end(at),
                cancel_requested=False,
                started_at=at,
                segment=0,
                **owner,
                **fresh,
            )
    except (IntegrityError, Fenced):
        return None
    audit.append(session, _actor(supervisor.id), "start", "job", row.id, f"attempt {row.attempt} on {supervisor.host}")
    database.note(
        session, StateChanged(row.id, row.attempt, row.kind, JobState.STARTING, (at - row.created_at).total_seconds())
    )
    return found


def list_devices(session: Session, job_id: str) -> list[str]:
    """The units that a live job has."""
    return list(session.exec(select(ClaimRow.device).where(ClaimRow.job_id == job_id)))


def change(session: Session, held: Lease, states: Iterable[JobState], **values: Any) -> None:
    """Change columns of the job while it is in one of these states, at that attempt, under that token. Raises
    Fenced."""
    statement = update(JobRow).where(col(JobRow.id) == held.job, col(JobRow.attempt) == held.attempt)
    statement = statement.where(col(JobRow.token) == held.token, col(JobRow.state).in_(list(states)))
    if _count_changed(session, statement.values(**values)) != 1:
        raise Fenced(f"Job {held.job} is not this supervisor's any more, or has gone on: nothing was changed.")


def move(session: Session, held: Lease, state: JobState, **values: Any) -> None:
    """Change the state by the table of legal transitions; a job that is not live any more gives its devices back.

    Raises Fenced, and NotNow where the state cannot become that one.
    """
    row = session.get(JobRow, held.job, populate_existing=True)
    if row is not None and read_lease(row) == held and state not in TRANSITIONS[JobState(row.state)]:
        raise NotNow(f"Job {held.job} is {row.state}; it cannot become {state}.")
    before_it = row.state if row is not None else None
    if state in TERMINAL:
        values = {"finished_at": clock(session), "eta_s": None} | values
    if state not in LIVE:
        values = {"lease_until": None} | values
    change(session, held, [before for before, after in TRANSITIONS.items() if state in after], state=state, **values)
    if state not in LIVE:  # after it: a change that is refused leaves a job that goes on its devices
        session.execute(delete(ClaimRow).where(col(ClaimRow.job_id) == held.job))
    if row is not None and row.supervisor and before_it in LIVE and state in TERMINAL:
        audit.append(
            session, _actor(row.supervisor), "end", "job", held.job, f"{state}. {values.get('error') or ''}".strip()
        )
    if row is not None:
        after_s = (clock(session) - row.started_at).total_seconds() if row.started_at else None
        database.note(session, StateChanged(held.job, held.attempt, row.kind, state, after_s, values.get("error")))


def _actor(supervisor: str) -> Actor:
    return Actor(name=supervisor, role=None, origin="supervisor")


def requeue(session: Session, held: Lease, **values: Any) -> None:
    """Queue the next attempt of a job that did not succeed. Raises Fenced, NotNow."""
    nothing = dict.fromkeys(("handle", "error", "result", "finished_at", "progress", "phase", "cause", "eta_s"))
    move(session, held, JobState.QUEUED, attempt=held.attempt + 1, cancel_requested=False, **(nothing | values))


def renew(session: Session, supervisor: SupervisorRow) -> None:
    """Write the supervisor's row with the time of now, and renew the leases that it still has. That it drains stays."""
    at = clock(session)
    _upsert(session, supervisor.model_copy(update={"heartbeat_at": at, "draining": False}))
    database.note(
        session,
        LeasesRenewed(
            _count_changed(session, update(JobRow).where(*_owned_by(supervisor)).values(lease_until=_lease_end(at)))
        ),
    )


def adopt(session: Session, supervisor: SupervisorRow) -> None:
    """Take over every live job of that host and home: whoever holds the home's file lock knows that no other has
    them."""
    here = (col(JobRow.host) == supervisor.host, col(JobRow.home) == supervisor.home, col(JobRow.state).in_(LIVE))
    values = {"supervisor": supervisor.id, "token": JobRow.token + 1, "lease_until": _lease_end(clock(session))}
    _count_changed(session, update(JobRow).where(*here).values(**values))


def drain(session: Session, host: str, home: str) -> int:
    """Have that home's supervisors take no new jobs; how many there were."""
    there = (col(SupervisorRow.host) == host, col(SupervisorRow.home) == home, col(SupervisorRow.stopped).is_(False))
    return _count_changed(session, update(SupervisorRow).where(*there).values(draining=True))


def latest_supervisor(session: Session, host: str, home: str) -> SupervisorRow | None:
    """The one of that home that was heard last."""
    there = select(SupervisorRow).where(SupervisorRow.host == host, SupervisorRow.home == home)
    return session.exec(there.order_by(col(SupervisorRow.heartbeat_at).desc()).limit(1)).first()


def is_draining(session: Session, supervisor: SupervisorRow) -> bool:
    supervisor_row = session.get(SupervisorRow, supervisor.id, populate_existing=True)
    return supervisor_row is not None and supervisor_row.draining


def hand_over(session: Session, supervisor: SupervisorRow) -> None:
    """What it has goes on without it until the next one of its home adopts it."""
    until = clock(session) + timedelta(seconds=HANDOVER_SECONDS)
    _count_changed(session, update(JobRow).where(*_owned_by(supervisor)).values(lease_until=until))
    last = {"heartbeat_at": clock(session), "stopped": True, "draining": is_draining(session, supervisor)}
    session.merge(supervisor.model_copy(update=last))


def list_owned(session: Session, supervisor: SupervisorRow) -> list[JobRow]:
    """Its live jobs, in queue order."""
    return list(session.exec(select(JobRow).where(*_owned_by(supervisor)).order_by(col(JobRow.rank))))


def list_jobs_by_supervisor(session: Session) -> dict[str, tuple[str, ...]]:
    """Supervisor -> its live jobs, in queue order."""
    found: dict[str, tuple[str, ...]] = {}
    live = select(JobRow.supervisor, JobRow.id).where(col(JobRow.state).in_(LIVE)).order_by(col(JobRow.rank))
    for owner, job in session.exec(live):
        found[str(owner)] = (*found.get(str(owner), ()), job)
    return found


def list_expired(session: Session, supervisor: SupervisorRow) -> list[JobRow]:
    """Others' live jobs whose lease has run out."""
    late = (
        col(JobRow.lease_until) < clock(session),
        col(JobRow.state).in_(LIVE),
        col(JobRow.supervisor) != supervisor.id,
    )
    return list(session.exec(select(JobRow).where(*late)))


def list_live_supervisors(session: Session) -> list[SupervisorRow]:
    """Those whose heartbeat is fresh."""
    fresh = clock(session) - timedelta(seconds=STALE_SECONDS)
    statement = select(SupervisorRow).where(
        col(SupervisorRow.heartbeat_at) > fresh, col(SupervisorRow.stopped).is_(False)
    )
    return list(session.exec(statement))


def _owned_by(supervisor: SupervisorRow) -> tuple[Any, ...]:
    return col(JobRow.supervisor) == supervisor.id, col(JobRow.state).in_(LIVE)


def _lease_end(at: datetime) -> datetime:
    return at + timedelta(seconds=LEASE_SECONDS)


def _upsert(session: Session, row: SupervisorRow) -> None:
    """Insert the row, or bring the one that is there to it, except that it drains: in one statement, since the thread
    that beats and the rounds both write it, and may both be the first."""
    dialect = sqlite if session.get_bind().dialect.name == "sqlite" else postgresql
    values = row.model_dump()
    changed = {name: value for name, value in values.items() if name not in {"id", "draining"}}
    session.execute(
        dialect.insert(SupervisorRow).values(**values).on_conflict_do_update(index_elements=["id"], set_=changed)
    )


def _count_changed(session: Session, statement: Any) -> int:
    """How many rows it changed."""
    outcome = session.execute(statement, execution_options={"synchronize_session": False})
    assert isinstance(outcome, CursorResult)
    return outcome.rowcount
