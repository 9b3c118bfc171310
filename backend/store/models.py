"""The models a person has imported: remember, forget, list. One row a folder, replaced when it is imported again."""

from __future__ import annotations

from sqlmodel import Session, col, select

from backend.domain.errors import NotFound
from backend.store.tables import ModelRow


def remember(session: Session, row: ModelRow) -> None:
    session.merge(row)


def forget(session: Session, path: str) -> None:
    """Raises NotFound."""
    row = session.get(ModelRow, path)
    if row is None:
        raise NotFound(f"`{path}` was not imported, so there is nothing to forget: `whetstone models list` shows what was.")
    session.delete(row)


def find(session: Session, path: str) -> ModelRow | None:
    return session.get(ModelRow, path)


def listing(session: Session, *, limit: int = 100) -> list[ModelRow]:
    """Latest first."""
    return list(session.exec(select(ModelRow).order_by(col(ModelRow.created_at).desc(), col(ModelRow.path)).limit(limit)))
