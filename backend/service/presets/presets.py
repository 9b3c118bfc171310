"""Presets: where others start. List, show, apply to a model, save, import and export."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from backend.catalog.bundled import presets as bundled
from backend.domain.errors import InvalidPreset, NotFound, Unreadable, WrittenByNewer
from backend.domain.frozen import Frozen
from backend.domain.planner.presets import Origin, Preset
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe.recipe import Recipe
from backend.domain.roles import Action
from backend.domain.similar_names import nearest
from backend.domain.validation import first_flaw, read_stored, readable_rows
from backend.present.preset_figures import Estimated, Measurement
from backend.service.machines import targets
from backend.service.models import models
from backend.service.plans import auto_target, cases
from backend.service.plans.cases import Case
from backend.service.presets import preset_figures, preset_text
from backend.service.workspace import Workspace
from backend.store import presets as kept
from backend.store import sync_state
from backend.store.database import Store, StoreUnavailable
from backend.store.tables import PresetRow, now

SaveOutcome = Literal["new", "replaced", "unchanged"]


class PresetFilter(Frozen):
    """Conditions on presets. `model` is an id, hub id or folder; all `words` must occur in id, model or target."""

    model: str | None = None
    goal: str | None = None
    origin: str | None = None
    target: str | None = None
    words: str = ""


class KnownPreset(Frozen):
    """A preset, where it came from and whose it is; `hash` is that of its content."""

    preset: Preset
    origin: Origin
    owner: str
    hash: str
    created_at: datetime


ROW_FIELDS = ("origin", "owner", "hash", "created_at")
"""Columns of a row beside its document."""


class PresetView(Frozen):
    """A preset with its figures. `today` holds each published claim against today's prices, None where that means
    nothing."""

    preset: Preset
    origin: Origin
    owner: str
    hash: str
    estimated: Estimated
    measured: tuple[Measurement, ...]
    today: tuple[str | None, ...]


class AppliedPreset(NamedTuple):
    """A preset on a model and target. `source` is the model as it was named."""

    preset: str
    source: str
    case: Case


def sync(store: Store) -> None:
    """Bring the bundled presets of the store up to the file."""
    sync_state.sync_rows(store, "presets", bundled.digest(), lambda: partial(kept.replace_bundled, rows=_bundled()))


def _bundled() -> list[PresetRow]:
    return [_row(preset, "bundled", rank) for rank, preset in enumerate(bundled.load().values(), 1)]


def _row(preset: Preset, origin: Origin, rank: int = 0, owner: str = "") -> PresetRow:
    return PresetRow(
        id=preset.id,
        model=preset.model,
        goal=preset.goal,
        origin=origin,
        target=preset.target,
        hash=preset.hash,
        rank=rank,
        created_at=now(),
        document=preset.model_dump_json(),
        owner=owner,
    )


def _known(row: PresetRow) -> KnownPreset:
    fields = {name: getattr(row, name) for name in ROW_FIELDS}
    return KnownPreset.model_validate(
        {"preset": read_stored(Preset, row.document, f"the stored preset {row.id}"), **fields}
    )


def _sync_if_writable(workspace: Workspace) -> None:
    if workspace.read_only:  # a demonstration was filled when it was made
        return
    # another program writes: what is there is shown, and the next look brings it up to date
    with suppress(StoreUnavailable):
        sync(workspace.store)


def listing(
    workspace: Workspace, chosen: PresetFilter | None = None, *, limit: int = 100, offset: int = 0
) -> list[KnownPreset]:
    """A person's own and imported ones first, latest first, then the bundled in the file's order."""
    _sync_if_writable(workspace)
    where = _conditions(workspace, chosen or PresetFilter())
    with workspace.store.read() as session:
        return readable_rows(kept.list_rows(session, where, limit=limit, offset=offset), _known)


def count(workspace: Workspace, chosen: PresetFilter | None = None) -> int:
    """Return the number of presets that `listing` would return without a limit."""
    _sync_if_writable(workspace)
    with workspace.store.read() as session:
        return kept.count(session, _conditions(workspace, chosen or PresetFilter()))


def _conditions(workspace: Workspace, chosen: PresetFilter) -> list[kept.Condition]:
    names = preset_figures.model_names(workspace, chosen.model) if chosen.model else []
    return kept.conditions(models=names, **chosen.model_dump(exclude={"model"}))


def models_with_presets(workspace: Workspace) -> list[str]:
    """Every model that has a preset."""
    _sync_if_writable(workspace)
    with workspace.store.read() as session:
        return kept.list_models(session)


def find(workspace: Workspace, preset_id: str) -> KnownPreset:
    """Raises NotFound with the nearest ids, WrittenByNewer, InvalidPreset where what is stored under the id cannot be
    read."""
    _sync_if_writable(workspace)
    with workspace.store.read() as session:
        row = kept.find(session, preset_id)
        if row is not None:
            # A damaged row is reported with the way to remove it.
            try:
                return _known(row)
            except WrittenByNewer:
                raise
            except Unreadable as error:
                raise InvalidPreset(f"{error} `whetstone presets remove {preset_id}` takes it out.") from None
        ids = [preset.id for preset in kept.list_rows(session, [], limit=1000)]
    near = ", ".join(f"`{name}`" for name in nearest(preset_id, ids))
    raise NotFound(f"There is no preset `{preset_id[:120]}`: the nearest are {near}.")


def show(workspace: Workspace, preset_id: str, load: ExpectedLoad | None = None) -> PresetView:
    """Return a preset with its figures at that load. Raises NotFound."""
    return view(workspace, find(workspace, preset_id), preset_figures.PresetEvaluations(workspace), load)


def view(
    workspace: Workspace,
    known: KnownPreset,
    evaluated: preset_figures.PresetEvaluations,
    load: ExpectedLoad | None = None,
    *,
    probe: bool = True,
) -> PresetView:
    """With its figures at that load; `evaluated` is shared by the presets of a list. Without `probe` this machine is
    not measured."""
    preset = known.preset
    return PresetView(
        preset=preset,
        origin=known.origin,
        owner=known.owner,
        hash=known.hash,
        estimated=preset_figures.estimate(workspace, preset, load, probe=probe),
        measured=evaluated.measurements(preset),
        today=tuple(preset_figures.price_claim_today(workspace, preset, claim) for claim in preset.published),
    )


def views(
    workspace: Workspace,
    known_presets: Sequence[KnownPreset],
    load: ExpectedLoad | None = None,
    *,
    probe: bool = False,
) -> list[PresetView]:
    """Return the views of a list of presets at that load. With `probe`, measure this machine's speed if it is unknown,
    which takes seconds once."""
    evaluated = preset_figures.PresetEvaluations(workspace)
    return [view(workspace, preset, evaluated, load, probe=probe) for preset in known_presets]


def apply(
    workspace: Workspace, preset_id: str, *, model: str | None = None, target: str | None = None
) -> AppliedPreset:
    """The preset's recipe held against a model and a target, its own where none is named; nothing is started.

    Raises NotFound, UnknownModel, InvalidModel, InvalidRecipe for an unknown target.
    """
    preset = find(workspace, preset_id).preset
    source = model or preset.model
    facts = models.resolve_facts(workspace, source)
    where = auto_target.resolve_target(workspace, facts, preset.recipe, target or preset.target)
    return AppliedPreset(preset.id, source, cases.resolve(workspace, facts, preset.recipe, where))


def save(
    workspace: Workspace,
    preset_id: str,
    *,
    model: str,
    goal: str,
    recipe: Recipe,
    target: str = "local",
    summary: str = "",
    replace: bool = False,
) -> KnownPreset:
    """Keep an own recipe as a preset. Raises InvalidPreset, UnknownModel, InvalidModel, InvalidRecipe, ReadOnly."""
    # Check the model and the fields before anything is stored.
    models.resolve_facts(workspace, model)
    fields = {"id": preset_id, "model": model, "goal": goal, "target": target, "summary": summary, "recipe": recipe}
    try:
        preset = Preset.model_validate(fields)
    except ValidationError as error:
        raise InvalidPreset(first_flaw(error).sentence("the preset")) from None
    put(workspace, [preset], origin="own", replace=replace)
    return find(workspace, preset.id)


def put(
    workspace: Workspace, presets: Sequence[Preset], *, origin: Origin = "imported", replace: bool = False
) -> list[tuple[str, SaveOutcome]]:
    """Put presets into the store: all of them or none. (id, what became of it) in their order.

    Raises InvalidPreset where an id is taken by another preset (`replace` allows it for those that are not bundled) or
    a target does not exist, ReadOnly in a demonstration.
    """
    # 1. Check the targets.
    workspace.check(Action.SAVE_PRESET)
    _sync_if_writable(workspace)
    candidates = targets.hardwares(workspace)
    for preset in presets:
        candidates.find(preset.target)

    def put(session: Any) -> list[SaveOutcome]:
        outcomes = [_save_outcome(preset, kept.find(session, preset.id), replace) for preset in presets]
        for preset, outcome in zip(presets, outcomes, strict=True):
            if outcome == "replaced":
                workspace.allow(session, Action.REPLACE_PRESET, preset.id)
            if outcome != "unchanged":
                kept.put(session, _row(preset, origin, owner=workspace.actor.name))
        return outcomes

    # 2. Store all presets in one transaction, or none.
    ids = ", ".join(preset.id for preset in presets)
    outcomes = workspace.change(
        Action.SAVE_PRESET, ids, put, detail=origin, changed=lambda changes: set(changes) != {"unchanged"}
    )
    return [(preset.id, outcome) for preset, outcome in zip(presets, outcomes, strict=True)]


def _save_outcome(preset: Preset, present: PresetRow | None, replace: bool) -> SaveOutcome:
    if present is None:
        return "new"
    if present.hash == preset.hash:
        return "unchanged"
    if present.origin == "bundled":
        raise InvalidPreset(f"`{preset.id}` comes with Whetstone and is another preset: give yours another id.")
    if not replace:
        raise InvalidPreset(
            f"There is another preset `{preset.id}` already: rename one, or replace it ({{}}).", "replace"
        )
    return "replaced"


def remove(workspace: Workspace, preset_id: str) -> None:
    """Forget a preset of one's own or an imported one. Raises NotFound, InvalidPreset for a bundled one, ReadOnly."""
    workspace.check(Action.REMOVE_PRESET)
    _sync_if_writable(workspace)
    with workspace.store.read() as session:
        row = kept.find(session, preset_id)
    origin = row.origin if row else find(workspace, preset_id).origin
    if origin == "bundled":
        raise InvalidPreset(f"`{preset_id}` comes with Whetstone and stays.")
    workspace.change(Action.REMOVE_PRESET, preset_id, lambda session: kept.remove(session, [preset_id]))


def export(workspace: Workspace, ids: Sequence[str]) -> str:
    """These presets as one YAML file. Raises NotFound."""
    return preset_text.write([find(workspace, preset_id).preset for preset_id in ids])
