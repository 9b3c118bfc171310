"""The catalog's tables: models of every origin, filtered, sorted and paged in SQL, and which recipes fit them where.

The fits are computed elsewhere and only stored here; nothing here reads files or rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, delete, exists, func, insert, or_
from sqlmodel import Session, col, select

from backend.domain.model.facts import ModelCard, ModelFacts, PublishedModel
from backend.domain.rules import catalog_filter
from backend.domain.rules.catalog_filter import CatalogFilter
from backend.store.tables import ArtifactRow, CatalogRow, FitRow, PlannedRow, now

MAX_WORDS = 8
RANKS = {"starter": 0, "imported": 1, "folder": 1, "published": 2, "reference": 3}
MOST_VALUES = 500
"""The most families or licences that a form offers."""


def make_row(
    model: ModelFacts, *, draft: ModelFacts | None = None, position: int = 0, at: datetime | None = None
) -> CatalogRow:
    """Make the row of a model; `draft` is the one that comes with it, `at` when it was added."""
    # Fields and search words differ with where the model is from.
    fields: dict[str, Any] = {"licence": getattr(model, "licence", None)}
    words = [model.id, model.architecture, model.model_type]
    if isinstance(model, PublishedModel):
        cells = model.published.model_dump() if model.published else {}
        marks = {"preoptimized": model.preoptimized, "precompiled": model.precompiled}
        fields = {"licence": model.license, "hub": model.hf_repo.lower(), **cells, **marks}
        words += [model.display_name, model.family, model.provider, model.hf_repo]
    if isinstance(model, ModelCard):
        words.append(model.path)
    return CatalogRow(
        source=source(model),
        name=model.id,
        origin=model.origin,
        rank=RANKS.get(model.origin, 1),
        position=position,
        words=" ".join(words).casefold(),
        family=catalog_filter.family_name(model),
        parameters=model.parameters,
        context=model.max_positions,
        kv_bytes_per_token=model.kv_bytes_per_token,
        shape=catalog_filter.facts_hash(model, draft),
        card=model.model_dump_json(),
        created_at=at or now(),
        **fields,
    )


def source(model: ModelFacts) -> str:
    """Return what a person writes for the model: the id of a bundled one, else its folder."""
    return model.path if isinstance(model, ModelCard) and model.origin != "starter" else model.id


def remove(session: Session, path: str) -> None:
    """Remove the model from the list if it is there."""
    session.exec(delete(CatalogRow).where(col(CatalogRow.source) == path))


def replace(session: Session, origins: Sequence[str], rows: Iterable[CatalogRow]) -> None:
    """Replace all models of these origins by `rows`; in bulk, since they may be thousands."""
    session.exec(delete(CatalogRow).where(col(CatalogRow.origin).in_(origins)))
    params = [row.model_dump() for row in rows]
    if params:
        session.exec(insert(CatalogRow), params=params)


def find(session: Session, name: str, origins: Sequence[str]) -> CatalogRow | None:
    """Find a model by source, id or hub id, in any case."""
    lowered = name.lower()
    same = or_(
        func.lower(col(CatalogRow.source)) == lowered,
        func.lower(CatalogRow.name) == lowered,
        col(CatalogRow.hub) == lowered,
    )
    statement = select(CatalogRow).where(col(CatalogRow.origin).in_(origins), same)
    return session.exec(statement.order_by(col(CatalogRow.rank), col(CatalogRow.position)).limit(1)).first()


def list_rows(
    session: Session, chosen: CatalogFilter, target: str, *, limit: int | None, offset: int = 0
) -> list[CatalogRow]:
    """Return rows in the filter's order. `target` is the name under which fits are stored for the filter's place."""
    own = (col(CatalogRow.rank), col(CatalogRow.position), col(CatalogRow.created_at).desc(), col(CatalogRow.name))
    ordered: tuple[Any, ...] = own
    if chosen.sort != "catalog":
        column = col(getattr(CatalogRow, "kv_bytes_per_token" if chosen.sort == "kv" else chosen.sort))
        order: Any = column if chosen.sort in {"parameters", "context", "kv"} else func.lower(column)
        ordered = (order.desc() if chosen.descending else order.asc(), *own)
    statement = select(CatalogRow).where(*_conditions(chosen, target)).order_by(*ordered)
    return list(session.exec(statement.offset(offset).limit(limit)))


def count(session: Session, chosen: CatalogFilter, target: str) -> int:
    return session.exec(select(func.count()).select_from(CatalogRow).where(*_conditions(chosen, target))).one()


def _conditions(chosen: CatalogFilter, target: str) -> list[ColumnElement[bool]]:
    conditions = [col(CatalogRow.origin).in_(chosen.origins or catalog_filter.LISTED), _still_used()]
    columns = ((CatalogRow.family, chosen.families), (CatalogRow.licence, chosen.licences))
    conditions += [col(column).in_(values) for column, values in columns if values]
    conditions += _bounds(chosen)
    conditions += [
        col(getattr(CatalogRow, name)) == "Yes" for name in chosen.techniques if name in catalog_filter.PUBLISHED
    ]
    fitting = select(FitRow.shape).where(FitRow.target == target)
    conditions += [col(CatalogRow.shape).in_(fitting.where(FitRow.kind == kind)) for kind in chosen.kinds]
    words = chosen.words.casefold().split()[:MAX_WORDS]
    return conditions + [col(CatalogRow.words).contains(word, autoescape=True) for word in words]


def _still_used() -> ColumnElement[bool]:
    """Match models that are not plain folders, and folders while an artifact made from them exists."""
    has_artifact = exists().where(col(ArtifactRow.model) == col(CatalogRow.name))
    return or_(col(CatalogRow.origin) != "folder", has_artifact)


def _bounds(chosen: CatalogFilter) -> list[ColumnElement[bool]]:
    parameters, context = col(CatalogRow.parameters), col(CatalogRow.context)
    bounds = (
        (chosen.min_parameters, parameters.__ge__),
        (chosen.max_parameters, parameters.__le__),
        (chosen.min_context, context.__ge__),
        (chosen.max_context, context.__le__),
    )
    return [holds(bound) for bound, holds in bounds if bound is not None]


def list_values(session: Session, column: Literal["family", "licence"]) -> list[str]:
    """Return the values of that column among listed models, sorted without regard to case."""
    chosen = col(getattr(CatalogRow, column))
    statement = select(chosen).where(col(CatalogRow.origin).in_(catalog_filter.LISTED), chosen.is_not(None)).distinct()
    return sorted(session.exec(statement.limit(MOST_VALUES)), key=str.casefold)


def list_names(session: Session, origins: Sequence[str]) -> list[str]:
    """Return the ids of these origins, in the catalog's order."""
    statement = select(CatalogRow.name).where(col(CatalogRow.origin).in_(origins))
    return list(session.exec(statement.order_by(col(CatalogRow.rank), col(CatalogRow.position))))


def find_unplanned(session: Session, place: str) -> list[CatalogRow]:
    """Return one model of each shape whose fits there are not known yet."""
    done = select(PlannedRow.shape).where(PlannedRow.place == place)
    listed = col(CatalogRow.origin).in_(catalog_filter.LISTED)
    first = (
        select(func.min(CatalogRow.source)).where(listed, col(CatalogRow.shape).not_in(done)).group_by(CatalogRow.shape)
    )
    return list(session.exec(select(CatalogRow).where(col(CatalogRow.source).in_(first))))


def save_fits(session: Session, place: str, fits: dict[str, set[tuple[str, str]]]) -> None:
    """Store the valid (target, kind) pairs of that place by shape. Shapes that another process saved meanwhile are
    skipped."""
    done = set(session.exec(select(PlannedRow.shape).where(PlannedRow.place == place)))
    rows = [
        {"target": target, "kind": kind, "shape": shape}
        for shape, pairs in fits.items()
        if shape not in done
        for target, kind in sorted(pairs)
    ]
    if rows:
        session.exec(insert(FitRow), params=rows)
    session.add_all(PlannedRow(place=place, shape=shape) for shape in fits if shape not in done)


def remove_fits(session: Session) -> None:
    """Delete all fits, because the rules have changed."""
    session.exec(delete(FitRow))
    session.exec(delete(PlannedRow))
