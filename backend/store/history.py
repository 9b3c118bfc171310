"""The results and events of jobs: events, artifacts, evaluations. Appends and reads; nothing here is ever changed
afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, RowMapping, and_, func, insert, or_, update
from sqlalchemy import select as sa_select
from sqlmodel import Session, col, select

from backend.domain.errors import NotFound
from backend.domain.jobs.jobs import Event
from backend.store import database
from backend.store.tables import ArtifactRow, EvaluationRow, EventRow, JobRow

MAX_WORDS = 8
NEWEST = (col(JobRow.created_at).desc(), col(JobRow.id))


def append(session: Session, job_id: str, events: Sequence[Event]) -> None:
    """Store events in order and bring the job's summary fields (phase, progress, ETA, message) up to date.

    The job's row is changed first: whoever else appends to the same job waits for it.
    """
    # 1. Change the job's row: the latest event of a kind wins.
    summary: dict[str, Any] = {"id": job_id}
    for event in events:
        summary |= _summary(event)
    session.execute(update(JobRow).where(col(JobRow.id) == job_id).values(**summary))
    # 2. Number the events after the last one and store them.
    seq = session.exec(select(func.max(EventRow.seq)).where(EventRow.job_id == job_id)).one() or 0
    rows = [
        {
            "job_id": job_id,
            "seq": number,
            "kind": event.kind,
            "at": event.at,
            "document": event.model_dump_json(exclude_none=True),
        }
        for number, event in enumerate(events, seq + 1)
    ]
    if rows:
        session.execute(insert(EventRow), params=rows)
        database.note(session, database.EventsAppended(job_id, events))


def _summary(event: Event) -> dict[str, Any]:
    if event.kind == "resource":  # the sampler speaks even when the work stands still: that is no sign of life
        return {}
    values: dict[str, Any] = {"event_at": event.at}
    if event.kind in {"phase", "progress"}:
        values |= {"phase": event.phase} if event.phase else {}
        values |= {"progress": event.progress} if event.progress is not None else {}
        values["eta_s"] = event.eta_s
    if event.message:
        values["message"] = event.message.replace("\0", "")  # PostgreSQL's text holds no NUL
    return values


def list_state_events(session: Session, job_id: str) -> list[Event]:
    """Return every change of the job's state, in order."""
    chosen = select(EventRow).where(EventRow.job_id == job_id, EventRow.kind == "state").order_by(col(EventRow.seq))
    return [Event.model_validate_json(row.document) for row in session.exec(chosen)]


def list_newest(session: Session, job_id: str, *conditions: Any, limit: int) -> Iterator[Event]:
    """The newest of the job's events that meet the conditions, the latest first, each read when it is asked for."""
    chosen = (
        select(EventRow).where(EventRow.job_id == job_id, *conditions).order_by(col(EventRow.seq).desc()).limit(limit)
    )
    return (Event.model_validate_json(row.document) for row in session.exec(chosen).all())


def timeline(session: Session, job_id: str) -> list[Event]:
    """The newest events other than progress, points and resources, in order: a story without reading thousands."""
    events = col(EventRow.kind).not_in(("progress", "point", "resource"))
    return list(list_newest(session, job_id, events, limit=200))[::-1]


def latest_progress(session: Session, job_id: str) -> Event | None:
    """The newest phase or progress event."""
    return next(list_newest(session, job_id, col(EventRow.kind).in_(("progress", "phase")), limit=1), None)


EVENTS_READ = 50
"""Progress events that are looked through for one with a certain field."""


def latest_with(session: Session, job_id: str, field: str) -> Event | None:
    """The newest progress event whose data have that field."""
    events = list_newest(session, job_id, EventRow.kind == "progress", limit=EVENTS_READ)
    return next((event for event in events if field in event.data), None)


def list_events(session: Session, job_id: str, *, after: int = 0) -> list[tuple[int, Event]]:
    """All (seq, event) pairs after that number, in order."""
    statement = select(EventRow).where(EventRow.job_id == job_id, col(EventRow.seq) > after).order_by(col(EventRow.seq))
    return [(row.seq, Event.model_validate_json(row.document)) for row in session.exec(statement)]


def list_continuing(session: Session, evaluation_id: str) -> Sequence[JobRow]:
    """The jobs that were asked to continue that evaluation."""
    named = f'"continues":{{"evaluation":"{evaluation_id}"'
    statement = select(JobRow).where(JobRow.kind == "evaluate", col(JobRow.spec).contains(named, autoescape=True))
    return session.exec(statement).all()


class JobFilter(NamedTuple):
    """Selects jobs; an empty field selects all. All `words` must be in the title or the id."""

    states: Sequence[str] = ()
    kinds: Sequence[str] = ()
    words: str = ""
    owner: str | None = None
    yields: bool | None = None


def list_jobs(session: Session, chosen: JobFilter, *, limit: int = 50, offset: int = 0) -> list[JobRow]:
    """Newest first."""
    statement = select(JobRow).where(*_conditions(chosen, in_time_order=True))
    return list(session.exec(statement.order_by(*NEWEST).offset(offset).limit(limit)))


def job_columns(
    session: Session, chosen: JobFilter, columns: Sequence[str], *, limit: int = 50, offset: int = 0
) -> Sequence[RowMapping]:
    """The same without specifications and whatever else is not among `columns`: for a list of thousands."""
    statement = sa_select(*(col(getattr(JobRow, name)) for name in columns)).where(
        *_conditions(chosen, in_time_order=True)
    )
    return session.execute(statement.order_by(*NEWEST).offset(offset).limit(limit)).mappings().all()


def read_specifications(session: Session, job_ids: Sequence[str]) -> dict[str, str]:
    """Job -> its specification as it was submitted."""
    return dict(session.exec(select(JobRow.id, JobRow.spec).where(col(JobRow.id).in_(job_ids))).all())


def count_jobs(session: Session, chosen: JobFilter) -> int:
    return session.exec(select(func.count()).select_from(JobRow).where(*_conditions(chosen))).one()


def _conditions(chosen: JobFilter, *, in_time_order: bool = False) -> list[ColumnElement[bool]]:
    """`in_time_order` keeps the index on states out of it: a page of the newest is found by walking the one on times,
    where SQLite would else read and sort every job of those states."""
    conditions: list[ColumnElement[bool]] = []
    if chosen.states:
        state = func.coalesce(col(JobRow.state), "") if in_time_order else col(JobRow.state)
        conditions.append(state.in_(chosen.states))
    if chosen.kinds:
        conditions.append(col(JobRow.kind).in_(chosen.kinds))
    if chosen.yields is not None:
        conditions.append(col(JobRow.yields) == chosen.yields)
    return conditions + equals(JobRow.owner, chosen.owner) + with_words(chosen.words, JobRow.title, JobRow.id)


def with_words(words: str, *columns: str) -> list[ColumnElement[bool]]:
    """Each word stands in one of the columns, in any case."""
    return [
        or_(*(col(column).icontains(word, autoescape=True) for column in columns)) for word in words.split()[:MAX_WORDS]
    ]


def list_queued(session: Session, states: Sequence[str]) -> list[JobRow]:
    """Jobs in these states, in queue order."""
    return list(session.exec(select(JobRow).where(col(JobRow.state).in_(states)).order_by(col(JobRow.rank))))


def get_artifact(session: Session, artifact_id: str) -> ArtifactRow:
    """The row. Raises NotFound."""
    row = session.get(ArtifactRow, artifact_id)
    if row is None:
        raise NotFound(f"There is no artifact {artifact_id}: `whetstone artifacts list` shows those that exist.")
    return row


def list_artifacts(
    session: Session, *, model: str | None = None, owner: str | None = None, limit: int = 100, offset: int = 0
) -> list[ArtifactRow]:
    """Newest first."""
    conditions = equals(ArtifactRow.model, model or None) + equals(ArtifactRow.owner, owner)
    statement = select(ArtifactRow).where(*conditions).order_by(col(ArtifactRow.created_at).desc())
    return list(session.exec(statement.offset(offset).limit(limit)))


def artifact_bytes(session: Session, owner: str) -> int:
    """Return the bytes of all artifacts that a person has."""
    return int(
        session.exec(select(func.coalesce(func.sum(ArtifactRow.bytes), 0)).where(ArtifactRow.owner == owner)).one()
    )


def get_evaluation(session: Session, evaluation_id: str) -> EvaluationRow:
    """The row. Raises NotFound."""
    row = session.get(EvaluationRow, evaluation_id)
    if row is None:
        raise NotFound(f"There is no evaluation {evaluation_id}: the studio's Evaluate page lists those that exist.")
    return row


def latest_artifacts_by_model(session: Session, *, limit: int = 100) -> list[ArtifactRow]:
    """The newest artifact of each model, newest first."""
    newest = (
        select(ArtifactRow.model, func.max(ArtifactRow.created_at).label("at")).group_by(ArtifactRow.model).subquery()
    )
    same = and_(col(ArtifactRow.model) == newest.c.model, col(ArtifactRow.created_at) == newest.c.at)
    statement = select(ArtifactRow).join(newest, same).order_by(col(ArtifactRow.created_at).desc()).limit(limit)
    return list(session.exec(statement))


def list_evaluations(
    session: Session,
    *,
    baselines: Sequence[str] = (),
    owner: str | None = None,
    limit: int = 100,
    offset: int = 0,
) -> list[EvaluationRow]:
    """Newest first; `baselines` keeps those measured against a variant of one of these names."""
    conditions = equals(EvaluationRow.owner, owner)
    if baselines:
        conditions.append(col(EvaluationRow.baseline).in_(baselines))
    statement = select(EvaluationRow).where(*conditions).order_by(col(EvaluationRow.created_at).desc())
    return list(session.exec(statement.offset(offset).limit(limit)))


def count_evaluations(session: Session, owner: str | None = None) -> int:
    return session.exec(
        select(func.count()).select_from(EvaluationRow).where(*equals(EvaluationRow.owner, owner))
    ).one()


def list_evaluation_ids(session: Session, *, baseline: str | None = None, limit: int) -> list[str]:
    """Newest first, without reading the documents; with `baseline` only those against it."""
    statement = select(EvaluationRow.id).where(*equals(EvaluationRow.baseline, baseline))
    return list(session.exec(statement.order_by(col(EvaluationRow.created_at).desc()).limit(limit)))


def list_evaluation_titles(
    session: Session, *, words: str = "", owner: str | None = None, limit: int = 200, offset: int = 0
) -> list[tuple[str, str, str, datetime]]:
    """(id, title, owner, created) newest first, without reading the documents; `words` must all stand in the title or
    the id."""
    conditions = with_words(words, EvaluationRow.title, EvaluationRow.id) + equals(EvaluationRow.owner, owner)
    statement = select(EvaluationRow.id, EvaluationRow.title, EvaluationRow.owner, EvaluationRow.created_at).where(
        *conditions
    )
    return list(session.exec(statement.order_by(col(EvaluationRow.created_at).desc()).offset(offset).limit(limit)))


def equals(column: str, value: str | None) -> list[ColumnElement[bool]]:
    """Return the condition that the column has this value; no condition if there is no value."""
    return [] if value is None else [col(column) == value]


def list_points(session: Session, job_id: str) -> list[Event]:
    """The newest `point` events in order."""
    return list(list_newest(session, job_id, EventRow.kind == "point", limit=5000))[::-1]


def read_result(row: JobRow) -> dict[str, object]:
    """The job's result document, empty while there is none."""
    loaded: dict[str, object] = json.loads(row.result) if row.result else {}
    return loaded
