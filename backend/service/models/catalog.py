"""The catalog: stored models of every origin, filtered and paged, with published facts and our own checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import SerializeAsAny

from backend.domain.errors import UnknownFilter
from backend.domain.frozen import Frozen
from backend.domain.machine import price_list
from backend.domain.model.facts import ModelCard, ModelFacts, PublishedCells
from backend.domain.planner.footprint import Footprint, footprints
from backend.domain.rules import catalog_filter
from backend.domain.rules.catalog_filter import LISTED, ORIGINAL_KIND, PUBLISHED, CatalogFilter, CatalogOrder
from backend.domain.rules.nearest_recipe import with_dividing_group
from backend.domain.similar_names import nearest
from backend.domain.validation import validate_fields
from backend.service.machines import targets
from backend.service.models import catalog_sync, models, technique_checks
from backend.service.models.technique_checks import TechniqueCheck
from backend.service.workspace import Workspace
from backend.store import catalog as table
from backend.store.tables import CatalogRow

PER_PAGE = 20
HERE = "local"


class CatalogEntry(Frozen):
    """A model of the catalog. `published` is blank where no page lists it; `present` is False where its folder is
    gone."""

    source: str
    """The text that selects it: the id of a bundled model, else its folder."""
    id: str
    origin: str
    family: str
    licence: str | None
    present: bool
    published: PublishedCells
    preoptimized: bool
    precompiled: bool
    model: SerializeAsAny[ModelFacts]


class CatalogLine(Frozen):
    """An entry with its technique cells, as checked on the target that was asked for."""

    entry: CatalogEntry
    checks: tuple[TechniqueCheck, ...]
    fits: bool
    """True if an engine serves the original on that target."""


def refresh(workspace: Workspace) -> str | None:
    """Bring the bundled rows up to date. Returns the problem if a file is invalid or the database is locked; stored
    rows can still be read."""
    failed = catalog_sync.find_problem(workspace)
    return str(failed) if failed else None


def count(workspace: Workspace, chosen: CatalogFilter) -> int:
    """Count the stored models that pass the filter; `refresh` brings them up to date.

    Raises UnknownFilter, InvalidRecipe for an unknown target.
    """
    fits_key = _fits_key(workspace, chosen)
    with workspace.store.read() as session:
        return table.count(session, chosen, fits_key)


def page(
    workspace: Workspace, chosen: CatalogFilter, number: int = 1, *, per_page: int | None = PER_PAGE
) -> list[CatalogLine]:
    """Return one page of lines, from 1; empty after the last page, everything if `per_page` is None. Raises as
    `count`."""
    # 1. Read the rows of the page.
    fits_key, where = _fits_key(workspace, chosen), targets.find(workspace, chosen.target or HERE)
    with workspace.store.read() as session:
        rows = table.list_rows(session, chosen, fits_key, limit=per_page, offset=(number - 1) * (per_page or 0))
    # 2. Check what works on each.
    entries = [_entry(catalog_sync.read(row), row) for row in rows]
    return [
        CatalogLine(
            entry=entry,
            checks=technique_checks.check_quickly(workspace, entry.model, where),
            fits=technique_checks.original_fits(entry.model, where),
        )
        for entry in entries
    ]


def _fits_key(workspace: Workspace, chosen: CatalogFilter) -> str:
    """Return the key of the stored fits that the filter needs."""
    _check_filter(workspace, chosen)
    return catalog_sync.check_fits(workspace, chosen.target or HERE) if chosen.kinds else ""


def listing(
    workspace: Workspace, chosen: CatalogFilter, number: int = 1, *, per_page: int | None = None
) -> list[CatalogLine]:
    """Bring the catalog up to date and return a page. Raises as `page`, and InvalidCatalog if a bundled file is
    invalid."""
    catalog_sync.sync(workspace)
    return page(workspace, chosen, number, per_page=per_page)


def _entry(model: ModelFacts, row: CatalogRow) -> CatalogEntry:
    """The row of that model as screens and tools see it."""
    cells = {name: getattr(row, name) for name in PUBLISHED}
    present = not isinstance(model, ModelCard) or models.is_present(model)  # else all that is known is in the catalog
    return CatalogEntry(
        source=row.source,
        id=row.name,
        origin=row.origin,
        family=row.family,
        licence=row.licence,
        present=present,
        published=PublishedCells.model_validate(cells),
        preoptimized=row.preoptimized,
        precompiled=row.precompiled,
        model=model,
    )


def show(workspace: Workspace, name: str) -> CatalogEntry:
    """Return a model by id, hub id or folder; the folder need not be in the catalog. Raises UnknownModel,
    InvalidModel."""
    model = models.resolve_facts(workspace, name)
    return _entry(model, table.make_row(model))


def memory(workspace: Workspace, model: ModelFacts, kind: str = ORIGINAL_KIND) -> list[Footprint]:
    """Return the model's footprint on each instance with a recipe of this kind. Raises UnknownFilter."""
    steps = catalog_filter.technique_recipes()
    _check_values("technique", (kind,), [*steps])
    return footprints(
        model,
        with_dividing_group(model, steps[kind]),
        [(where.name, where.device) for where in targets.hardwares(workspace).targets()],
    )


class CheapestInstance(Frozen):
    """The instance with the lowest published price an hour on which a recipe is valid, with when and where the price
    held."""

    instance: str
    usd_per_hour: float
    note: str


def cheapest_instance(workspace: Workspace, model: ModelFacts, kind: str = ORIGINAL_KIND) -> CheapestInstance | None:
    """Return the cheapest instance that fits by the rules; None if no instance with a price does. Raises
    UnknownFilter."""
    steps = catalog_filter.technique_recipes()
    _check_values("technique", (kind,), [*steps])
    recipe, draft = with_dividing_group(model, steps[kind]), catalog_sync.find_draft(workspace, model)
    target = technique_checks.cheapest_target(workspace, model, recipe, draft)
    if target is None or target.price_per_hour is None:
        return None
    note = price_list.price_note(target.instance) or ""
    return CheapestInstance(instance=target.name, usd_per_hour=target.price_per_hour, note=note)


def families(workspace: Workspace) -> list[str]:
    with workspace.store.read() as session:
        return table.list_values(session, "family")


def licences(workspace: Workspace) -> list[str]:
    with workspace.store.read() as session:
        return table.list_values(session, "licence")


def instances(workspace: Workspace) -> list[str]:
    """The bundled instances by name, then the same for the managed toolkit."""
    return [where.name for where in catalog_sync.instances(workspace)]


def _check_filter(workspace: Workspace, chosen: CatalogFilter) -> None:
    """Raises UnknownFilter with one sentence that names the nearest values."""
    # 1. Each name must be a known one.
    _check_values("origin", chosen.origins, LISTED)
    _check_values("technique", chosen.techniques, [*technique_checks.kind_titles(), *PUBLISHED])
    if chosen.target == "auto":
        raise UnknownFilter(
            "`auto` chooses an instance for one recipe: name an instance here, such as `ml.g5.12xlarge`."
        )
    if chosen.families:
        _check_values("family", chosen.families, families(workspace))
    if chosen.licences:
        _check_values("licence", chosen.licences, licences(workspace))
    # 2. Each range must not be empty.
    for name in ("parameters", "context"):
        low, high = getattr(chosen, f"min_{name}"), getattr(chosen, f"max_{name}")
        if low is not None and high is not None and low > high:
            raise UnknownFilter(f"The least {name} ({low:,}) is above the most ({high:,}): exchange them.")


def _check_values(what: str, values: tuple[str, ...], known: Sequence[str]) -> None:
    for value in values:
        if value not in known:
            near = [f"`{name}`" for name in nearest(value, known)]
            hint = (
                f"the nearest {'is' if len(near) == 1 else 'are'} {', '.join(near)}" if near else "the catalog is empty"
            )
            raise UnknownFilter(f"The catalog has no {what} `{value[:80]}`: {hint}.")


def make_filter(workspace: Workspace, **fields: Any) -> CatalogFilter:
    """Build a filter from a person's words; families and licences match in any case. Raises UnknownFilter,
    StoreUnavailable."""
    catalog_sync.find_problem(workspace)
    for field, known in (("families", families(workspace)), ("licences", licences(workspace))):
        names = {name.casefold(): name for name in known}
        fields[field] = tuple(names.get(value.casefold(), value) for value in fields.get(field, ()))
    _check_values("order", (str(fields.get("sort", "catalog")),), get_args(CatalogOrder))
    return validate_fields(CatalogFilter, fields, UnknownFilter)
