"""Statistics of jobs: recent progress, resource use, durations of similar jobs, counts and heartbeats. Reads only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlmodel import Session, col, func, select

from backend.domain.jobs.jobs import LIVE, Event, JobState
from backend.store import history, leases
from backend.store.tables import ClaimRow, EventRow, JobRow, SupervisorRow

MOST_RESOURCES = 5000


def list_recent_progress(session: Session, job_id: str, since: datetime) -> list[Event]:
    """Return the newest phase and progress events from `since` on, in order."""
    recent = (col(EventRow.kind).in_(("phase", "progress")), col(EventRow.at) >= since)
    return list(history.list_newest(session, job_id, *recent, limit=60))[::-1]


def list_resources(session: Session, job_id: str, since: datetime | None) -> list[Event]:
    """Return every `resource` event from `since` on, in order; only the newest if there are very many."""
    recent = [] if since is None else [col(EventRow.at) >= since]
    return list(history.list_newest(session, job_id, EventRow.kind == "resource", *recent, limit=MOST_RESOURCES))[::-1]


def list_succeeded(session: Session, kind: str, title: str | None = None) -> list[JobRow]:
    """Return the newest jobs of that kind that succeeded at their first attempt; `title` selects those of that title.

    A later attempt continues from a checkpoint, so its time is not that of the job.
    """
    statement = select(JobRow).where(JobRow.kind == kind, JobRow.state == JobState.SUCCEEDED, JobRow.attempt == 1)
    newest = statement.where(*history.equals(JobRow.title, title)).order_by(col(JobRow.created_at).desc())
    return list(session.exec(newest.limit(10)))


class Heartbeat(NamedTuple):
    """A supervisor that did not stop in order. `age_s`: seconds since its last heartbeat."""

    id: str
    host: str
    home: str
    age_s: float
    jobs: int
    """Live ones that it has."""

    @property
    def alive(self) -> bool:
        return self.age_s < leases.STALE_SECONDS


def count_jobs(session: Session) -> dict[tuple[str, str], int]:
    """Return the number of jobs by (state, kind)."""
    counts = select(JobRow.state, JobRow.kind, func.count()).group_by(JobRow.state, JobRow.kind)
    return {(state, kind): number for state, kind, number in session.exec(counts)}


def oldest_queued_s(session: Session) -> float:
    """Return how long ago the oldest queued job was submitted, in seconds; 0 if none is queued."""
    oldest: datetime | None = session.exec(
        select(func.min(JobRow.created_at)).where(JobRow.state == JobState.QUEUED)
    ).one()
    return 0.0 if oldest is None else max(0.0, (leases.clock(session) - oldest).total_seconds())


def list_heartbeats(session: Session) -> list[Heartbeat]:
    """Return the heartbeats of the last day, the latest first."""
    moment = leases.clock(session)
    since = moment - timedelta(days=1)
    rows = session.exec(
        select(SupervisorRow)
        .where(col(SupervisorRow.stopped).is_(False), col(SupervisorRow.heartbeat_at) > since)
        .order_by(col(SupervisorRow.heartbeat_at).desc())
    )
    live = select(JobRow.supervisor, func.count()).where(col(JobRow.state).in_(LIVE)).group_by(col(JobRow.supervisor))
    jobs = dict(session.exec(live).all())
    return [
        Heartbeat(row.id, row.host, row.home, (moment - row.heartbeat_at).total_seconds(), jobs.get(row.id, 0))
        for row in rows
    ]


def list_live(session: Session) -> list[JobRow]:
    """Return every job that a supervisor has, the longest-running first."""
    return list(session.exec(select(JobRow).where(col(JobRow.state).in_(LIVE)).order_by(col(JobRow.started_at))))


def list_devices(session: Session) -> dict[str, list[str]]:
    """Return the units of its host that each live job has."""
    devices: dict[str, list[str]] = {}
    for job, device in session.exec(select(ClaimRow.job_id, ClaimRow.device).order_by(ClaimRow.device)):
        devices.setdefault(job, []).append(device)
    return devices
