"""Keeps the catalog's tables up to date: bundled rows follow their files by content hash, and fits follow the rules.

Every read of the catalog checks first (`store.sync_state`), which reads three files' times and one row if nothing has
changed.
"""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache, partial
from pathlib import Path

from backend.catalog.bundled import models, published
from backend.domain.errors import InvalidCatalog, WhetstoneError
from backend.domain.machine.targets import Target
from backend.domain.model import facts as model
from backend.domain.model.facts import ModelCard, ModelFacts, PublishedModel
from backend.domain.rules import catalog_filter as catalog
from backend.domain.rules import check
from backend.domain.rules.nearest_recipe import with_dividing_group
from backend.domain.rules.target_facts import TargetFacts
from backend.hardware import probe
from backend.service.machines import targets
from backend.service.workspace import Workspace
from backend.settings import CHECKOUT
from backend.store import catalog as table
from backend.store import models as imported
from backend.store import sync_state
from backend.store.database import StoreUnavailable
from backend.store.tables import CatalogRow

MAPPING = (catalog, published, table, model)
"""Modules that decide what a row looks like: with another version of them the rows are made again."""
INSTANCES = "instances"
"""The place that stands for every bundled instance, by our engines and by the managed toolkit."""


def sync(workspace: Workspace) -> None:
    """Bring the bundled rows up to date. Raises InvalidCatalog where a file was edited wrongly, and then nothing is
    written."""
    sync_state.sync_rows(
        workspace.store, "bundled", _bundled_hash(), lambda: partial(imported.rebuild_catalog, bundled=_bundled_rows())
    )


def find_problem(workspace: Workspace) -> WhetstoneError | None:
    """Like `sync`; what keeps it from the tables is answered instead of raised, for whoever can go on with what they
    hold."""
    try:
        sync(workspace)
    except (InvalidCatalog, StoreUnavailable) as error:
        return error
    return None


def _bundled_hash() -> str:
    own = ",".join(str(card.path) for card in models.cards())  # a checkout that was moved
    return hashlib.sha256(
        f"{published.digest()} {_sources(tuple(Path(module.__file__ or '') for module in MAPPING))} {own}".encode()
    ).hexdigest()


def _bundled_rows() -> list[CatalogRow]:
    known, others = published.published(), published.reference()
    starters = {card.id: card for card in models.cards()}
    catalogs = [
        table.make_row(card, draft=starters.get(card.draft or ""), position=n)
        for n, card in enumerate(starters.values())
    ]
    catalogs += [
        table.make_row(each, draft=published.find(each.draft or ""), position=n)
        for n, each in enumerate(known.values())
    ]
    return catalogs + [table.make_row(each, position=n) for n, each in enumerate(others.values())]


@lru_cache(maxsize=1)
def domain_sources(name: str) -> tuple[Path, ...]:
    """The sources of a domain module and of all domain modules that it imports, near or far, in order of their
    paths."""
    waiting, paths = [name], set[Path]()
    while waiting:
        path = CHECKOUT / f"{waiting.pop().replace('.', '/')}.py"
        if path.is_file() and path not in paths:
            paths.add(path)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("backend.domain"):
                    waiting += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(sorted(paths))


@lru_cache(maxsize=4)
def _sources(paths: tuple[Path, ...]) -> str:
    """sha256 over sources, which a running process never changes."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read(row: CatalogRow) -> ModelFacts:
    """The model of a row. A starter's card is read from the checkout, as everywhere."""
    if row.origin == "starter":
        card = models.card(row.source)
        if card is not None:
            return card
    kind = PublishedModel if row.origin in {"published", "reference"} else ModelCard
    return kind.model_validate_json(row.card)


def find(workspace: Workspace, name: str) -> PublishedModel | None:
    """A model that is known by published facts alone, by JumpStart id or hub id in any case.

    Raises InvalidCatalog, StoreUnavailable where the catalog could not be brought up to date and does not hold it.
    """
    failed = find_problem(workspace)
    published_model = _find_stored(workspace, name)
    if published_model is None and failed is not None:
        raise failed
    return published_model


def find_known(workspace: Workspace, name: str) -> PublishedModel | None:
    """Like `find`, by what the store holds where it cannot be brought up to date."""
    find_problem(workspace)
    return _find_stored(workspace, name)


def _find_stored(workspace: Workspace, name: str) -> PublishedModel | None:
    with workspace.store.read() as session:
        row = table.find(session, name, ("published", "reference"))
    model_facts = read(row) if row else None
    return model_facts if isinstance(model_facts, PublishedModel) else None


def names(workspace: Workspace) -> list[str]:
    """The ids of the models that are known by published facts alone, by what the store holds."""
    find_problem(workspace)
    with workspace.store.read() as session:
        return table.list_names(session, ("published", "reference"))


def check_fits(workspace: Workspace, target: str) -> str:
    """Check every model of the catalog on that target and return the key of the stored fits.

    Raises InvalidRecipe for an unknown target.
    """
    # 1. Find the models that were not checked on this target, by these rules.
    where = targets.find(workspace, target)
    key, place = _fits_place(where)
    _check_rules(workspace)
    with workspace.store.read() as session:
        missing = [(row.shape, read(row)) for row in table.find_unplanned(session, place)]
    # 2. Check them outside a transaction, then store the results.
    if missing:
        places = [(key, where)]
        if place == INSTANCES:
            places = [(instance.name, instance) for instance in instances(workspace)]
        fits = {shape: _fits(workspace, facts, places) for shape, facts in missing}
        with workspace.store.upkeep() as session:
            table.save_fits(session, place, fits)
    return key


def _fits_place(where: Target) -> tuple[str, str]:
    """(key, place). A machine is known by what the rules read of it, so that several can share one store."""
    if where.instance is not None:
        return where.name, INSTANCES
    if where.kind != "local":
        return where.name, where.name
    device = where.device
    key = f"local {device.hardware} {device.units} {device.memory_bytes} {device.capability} {probe.has_compiler()}"
    return key, key


def instances(workspace: Workspace) -> list[Target]:
    """The bundled ones by our engines, then the same by the managed toolkit."""
    candidates = targets.hardwares(workspace)
    return [*candidates.targets(), *candidates.targets(managed=True)]


def _check_rules(workspace: Workspace) -> None:
    """Other rules or other instances make all that was worked out worthless."""
    # Prices change no verdict, so they do not count.
    rows = targets.hardwares(workspace)
    prices = {
        "sagemaker_usd_per_hour",
        "ec2_usd_per_hour",
        "price_source",
        "price_region",
        "price_as_of",
        "price_refreshed",
        "discount",
    }
    data = "".join(
        row.model_dump_json(exclude=prices) for row in (*rows.instances.values(), *rows.accelerators.values())
    )
    rules_hash = hashlib.sha256(f"{_sources(domain_sources('backend.domain.rules.check'))} {data}".encode()).hexdigest()
    sync_state.sync_rows(workspace.store, "planner", rules_hash, lambda: table.remove_fits)


def _fits(workspace: Workspace, each: ModelFacts, places: list[tuple[str, Target]]) -> set[tuple[str, str]]:
    """The (target, kind) pairs whose recipe is valid. Instances that the rules cannot tell apart are checked once."""
    draft, kinds = find_draft(workspace, each), catalog.technique_recipes()
    verdicts: dict[tuple[object, ...], list[str]] = {}
    names = set()
    for name, where in places:
        facts = facts_on(where, each, draft)
        managed_only = (facts.family, facts.optimization_job) if facts.place == "managed" else ()
        key = (facts.place, facts.hardware, facts.device, *managed_only)
        if key not in verdicts:
            verdicts[key] = [
                kind for kind, steps in kinds.items() if check.is_valid(each, with_dividing_group(each, steps), facts)
            ]
        names |= {(name, kind) for kind in verdicts[key]}
    return names


def facts_on(where: Target, model: ModelFacts, draft: ModelFacts | None) -> TargetFacts:
    """Return the facts that the rules read, those of Build; a listed model may be shared by any number of devices."""
    facts = targets.rule_facts(where, model, draft)
    return facts.model_copy(update={"any_degree": facts.place == "local"})


def find_draft(workspace: Workspace, each: ModelFacts) -> ModelFacts | None:
    """The draft that the model brings along, where it is known."""
    if not each.draft:
        return None
    return models.card(each.draft) or _find_stored(workspace, each.draft) or find(workspace, each.draft)
