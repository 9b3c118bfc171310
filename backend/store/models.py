"""The models that a person imported. One row per folder, replaced when it is imported again. A model that is imported
or used for an artifact is listed in the catalog in the same transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlmodel import Session, col, func, select

from backend.domain.errors import NotFound
from backend.domain.jobs.artifact import read_manifest
from backend.domain.model.facts import ModelCard
from backend.domain.validation import readable_rows
from backend.store import catalog, history
from backend.store.tables import CatalogRow, ModelRow

MOST_USED = 10_000
"""Folders that artifacts were made from."""


def remember(session: Session, row: ModelRow) -> ModelRow:
    """Store the row. A name that another folder has gets a number, the card carries the name, and a folder keeps its
    owner."""
    name, number = row.name, 1
    while (other := find_by_name(session, row.name)) is not None and other.path != row.path:
        number += 1
        row.name = f"{name}-{number}"
    if (before := find(session, row.path)) is not None:
        row.owner = before.owner
    card = ModelCard.model_validate_json(row.card).model_copy(update={"id": row.name, "origin": "imported"})
    row.card = card.model_dump_json()
    model = session.merge(row)
    session.merge(_catalog_row(row))
    return model


def find_by_name(session: Session, name: str) -> ModelRow | None:
    """Find a model by its name in any case, or by the hub id that the name begins with; the latest if several match."""
    lowered = name.lower()
    exact = session.exec(select(ModelRow).where(func.lower(ModelRow.name) == lowered)).first()
    if exact is not None or "/" not in name:
        return exact
    of_hub = select(ModelRow).where(func.lower(ModelRow.name).startswith(f"{lowered}@", autoescape=True))
    return session.exec(of_hub.order_by(col(ModelRow.created_at).desc())).first()


def _catalog_row(row: ModelRow) -> CatalogRow:
    card = ModelCard.model_validate_json(row.card)
    changes = {"origin": "imported", "path": row.path, "licence": row.licence or card.licence}
    return catalog.make_row(card.model_copy(update=changes), at=row.created_at)


def list_in_catalog(session: Session, card: ModelCard, at: datetime | None = None) -> None:
    """List a model that an artifact was made from in the catalog; bundled and imported models are listed anyway."""
    if card.origin != "starter" and session.get(CatalogRow, card.path) is None:
        model_card = card if card.origin == "imported" else card.model_copy(update={"origin": "folder"})
        session.merge(catalog.make_row(model_card, at=at))


def rebuild_catalog(session: Session, bundled: Sequence[CatalogRow]) -> None:
    """Rebuild the catalog: bundled models, every import, and every folder that an artifact was made from."""
    catalog.replace(session, ("starter", "published", "reference"), bundled)
    catalog.replace(session, ("imported", "folder"), readable_rows(list_rows(session, limit=None), _catalog_row))
    artifacts = history.latest_artifacts_by_model(session, limit=MOST_USED)
    for parent, created_at in readable_rows(
        artifacts, lambda row: (read_manifest(row.manifest).parent, row.created_at)
    ):
        list_in_catalog(session, parent, created_at)


def forget(session: Session, path: str) -> None:
    """Unregister an imported model. A folder that artifacts were made from stays in the catalog as such. Raises
    NotFound."""
    row = session.get(ModelRow, path)
    if row is None:
        raise NotFound(
            f"`{path}` was not imported, so there is nothing to forget: `whetstone models list` shows what was."
        )
    session.delete(row)
    catalog.remove(session, path)
    for card in readable_rows([row.card], ModelCard.model_validate_json):
        list_in_catalog(session, card.model_copy(update={"origin": "folder", "path": path}))


def find(session: Session, path: str) -> ModelRow | None:
    return session.get(ModelRow, path)


def list_cards(session: Session, *, limit: int | None = 100) -> list[ModelCard]:
    """Return the cards of imported models, the latest first."""
    return readable_rows(list_rows(session, limit=limit), lambda row: ModelCard.model_validate_json(row.card))


def list_rows(session: Session, *, limit: int | None = 100) -> list[ModelRow]:
    """Return the rows of imported models, the latest first."""
    return list(
        session.exec(select(ModelRow).order_by(col(ModelRow.created_at).desc(), col(ModelRow.path)).limit(limit))
    )
