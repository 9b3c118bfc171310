"""What says how jobs go: recent progress, resources, how long others took; how many there are, and who looks after
them. Reads only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple

from sqlmodel import Session, col, func, select

from backend.domain.jobs.jobs import LIVE, Event, JobState
from backend.store import history, leases
from backend.store.tables import ClaimRow, EventRow, JobRow, SupervisorRow

MOST_RESOURCES = 5000


def list_recent_progress(session: Session, job_id: str, since: datetime) -> list[Event]:
    """The newest phase and progress events from `since` on, in order."""
    recent = (col(EventRow.kind).in_(("phase", "progress")), col(EventRow.at) >= since)
    return list(history.list_newest(session, job_id, *recent, limit=60))[::-1]


def list_resources(session: Session, job_id: str, since: datetime | None) -> list[Event]:
    """Every `resource` event from `since` on, in order; the newest where there are very many."""
    recent = [] if since is None else [col(EventRow.at) >= since]
    return list(history.list_newest(session, job_id, EventRow.kind == "resource", *recent, limit=MOST_RESOURCES))[::-1]


def list_succeeded(session: Session, kind: str, title: str | None = None) -> list[JobRow]:
    """The newest jobs of that kind that succeeded at their first attempt; `title` narrows to those of just that title.

    A later attempt goes on from a checkpoint, so its time is not that of the job.
    """
    statement = select(JobRow).where(JobRow.kind == kind, JobRow.state == JobState.SUCCEEDED, JobRow.attempt == 1)
    newest = statement.where(*history.equals(JobRow.title, title)).order_by(col(JobRow.created_at).desc())
    return list(session.exec(newest.limit(10)))


class Heartbeat(NamedTuple):
    """A supervisor that did not stop in order. `age_s`: since its last sign of life."""

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
    """(state, kind) -> how many."""
    found = select(JobRow.state, JobRow.kind, func.count()).group_by(JobRow.state, JobRow.kind)
    return {(state, kind): number for state, kind, number in session.exec(found)}


def oldest_queued_s(session: Session) -> float:
    """How long the longest-waiting queued job has waited since it was submitted; 0 where none waits."""
    oldest: datetime | None = session.exec(
        select(func.min(JobRow.created_at)).where(JobRow.state == JobState.QUEUED)
    ).one()
    return 0.0 if oldest is None else max(0.0, (leases.clock(session) - oldest).total_seconds())


def list_heartbeats(session: Session) -> list[Heartbeat]:
    """Those heard within a day, the latest first."""
    at = leases.clock(session)
    since = at - timedelta(days=1)
    rows = session.exec(
        select(SupervisorRow)
        .where(col(SupervisorRow.stopped).is_(False), col(SupervisorRow.heartbeat_at) > since)
        .order_by(col(SupervisorRow.heartbeat_at).desc())
    )
    live = select(JobRow.supervisor, func.count()).where(col(JobRow.state).in_(LIVE)).group_by(col(JobRow.supervisor))
    jobs = dict(session.exec(live).all())
    return [
        Heartbeat(row.id, row.host, row.home, (at - row.heartbeat_at).total_seconds(), jobs.get(row.id, 0))
        for row in rows
    ]


def list_live(session: Session) -> list[JobRow]:
    """Every job that a supervisor has, the longest-running first."""
    return list(session.exec(select(JobRow).where(col(JobRow.state).in_(LIVE)).order_by(col(JobRow.started_at))))


def list_devices(session: Session) -> dict[str, list[str]]:
    """Live job -> what it has of its host."""
    found: dict[str, list[str]] = {}
    for job, device in session.exec(select(ClaimRow.job_id, ClaimRow.device).order_by(ClaimRow.device)):
        found.setdefault(job, []).append(device)
    return found
