"""What a screen reads of jobs to say how they go: recent progress, resources, and how long others took. Reads only."""

from __future__ import annotations

from datetime import datetime

from sqlmodel import Session, col, select

from backend.domain.jobs.jobs import Event, JobState
from backend.store.tables import EventRow, JobRow

MOST_RESOURCES = 5000


def recent_progress(session: Session, job_id: str, since: datetime, *, limit: int = 60) -> list[Event]:
    """The newest phase and progress events from `since` on, in order."""
    statement = (
        select(EventRow)
        .where(EventRow.job_id == job_id, col(EventRow.kind).in_(("phase", "progress")), col(EventRow.at) >= since)
        .order_by(col(EventRow.seq).desc())
        .limit(limit)
    )
    return _events(session, statement)


def resources(session: Session, job_id: str, since: datetime | None) -> list[Event]:
    """Every `resource` event from `since` on, in order; the newest where there are very many."""
    statement = select(EventRow).where(EventRow.job_id == job_id, EventRow.kind == "resource")
    if since is not None:
        statement = statement.where(col(EventRow.at) >= since)
    return _events(session, statement.order_by(col(EventRow.seq).desc()).limit(MOST_RESOURCES))


def _events(session: Session, statement: object) -> list[Event]:
    rows = session.exec(statement).all()  # type: ignore[call-overload]
    return [Event.model_validate_json(row.document) for row in reversed(rows)]


def succeeded(session: Session, kind: str, title: str | None = None, *, limit: int = 10) -> list[JobRow]:
    """The newest jobs of that kind that succeeded at their first attempt; `title` narrows to those of just that title.

    A later attempt goes on from a checkpoint, so its time is not that of the job.
    """
    statement = select(JobRow).where(JobRow.kind == kind, JobRow.state == JobState.SUCCEEDED, JobRow.attempt == 1)
    if title is not None:
        statement = statement.where(JobRow.title == title)
    return list(session.exec(statement.order_by(col(JobRow.created_at).desc()).limit(limit)))
