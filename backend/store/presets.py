"""Presets in the store: put, take out, find, list. Knows nothing of which of them are valid where."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, delete, or_
from sqlmodel import Session, col, func, select

from backend.store import history
from backend.store.tables import EvaluationRow, PresetRow

Condition = ColumnElement[bool]


def put(session: Session, row: PresetRow) -> None:
    """Insert it, or replace the one of that id."""
    session.merge(row)


def find(session: Session, preset_id: str) -> PresetRow | None:
    return session.get(PresetRow, preset_id)


def remove(session: Session, ids: Sequence[str]) -> None:
    session.exec(delete(PresetRow).where(col(PresetRow.id).in_(ids)))


def replace_bundled(session: Session, rows: Sequence[PresetRow]) -> None:
    """Exactly these come with Whetstone from now on; one with the same content stays as it is."""
    present = dict(session.exec(select(PresetRow.id, PresetRow.hash).where(PresetRow.origin == "bundled")).all())
    remove(session, list(present.keys() - {row.id for row in rows}))
    for row in rows:
        if present.get(row.id) != row.hash:
            put(session, row)


def conditions(
    *,
    models: Sequence[str] = (),
    goal: str | None = None,
    origin: str | None = None,
    target: str | None = None,
    words: str = "",
) -> list[Condition]:
    """`models`: any of these names. `words`: each stands in the id, the model or the target, in any case."""
    clauses: list[Condition] = [col(PresetRow.model).in_(models)] if models else []
    clauses += (
        history.equals(PresetRow.goal, goal)
        + history.equals(PresetRow.origin, origin)
        + history.equals(PresetRow.target, target)
    )
    return clauses + history.with_words(words, PresetRow.id, PresetRow.model, PresetRow.target)


def list_rows(session: Session, where: Sequence[Condition], *, limit: int, offset: int = 0) -> list[PresetRow]:
    """A person's own and imported ones first, latest first, then the bundled in the file's order."""
    order = (col(PresetRow.rank), col(PresetRow.created_at).desc(), col(PresetRow.id))
    return list(session.exec(select(PresetRow).where(*where).order_by(*order).offset(offset).limit(limit)))


def count(session: Session, where: Sequence[Condition]) -> int:
    return session.exec(select(func.count()).select_from(PresetRow).where(*where)).one()


def list_models(session: Session) -> list[str]:
    """Return every model that has a preset."""
    return list(session.exec(select(PresetRow.model).distinct().order_by(col(PresetRow.model))))


def list_evaluations(
    session: Session, baselines: Sequence[str], prefix: str | None, *, limit: int
) -> list[EvaluationRow]:
    """The newest evaluations against a model of one of these names, or of a name that begins with `prefix`."""
    named: Condition = col(EvaluationRow.baseline).in_(baselines)
    where = or_(named, col(EvaluationRow.baseline).startswith(prefix, autoescape=True)) if prefix else named
    return list(
        session.exec(select(EvaluationRow).where(where).order_by(col(EvaluationRow.created_at).desc()).limit(limit))
    )
