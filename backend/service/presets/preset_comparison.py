"""Compares the presets of one model with its original at one load, and titles them by their figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backend.domain.errors import WhetstoneError
from backend.domain.frozen import Frozen
from backend.domain.machine.targets import target_kind
from backend.domain.planner import preset_choice, preset_titles, presets
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.planned_load import fit_context
from backend.domain.planner.preset_choice import PresetChoice
from backend.domain.planner.preset_titles import PresetRow, PresetTitle, title_presets
from backend.domain.planner.presets import Preset
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.planner.target_choice import TargetGoal
from backend.domain.recipe import step_words
from backend.domain.recipe.recipe import ORIGINAL
from backend.service.models import models
from backend.service.plans import token_prices
from backend.service.presets import preset_figures
from backend.service.presets import presets as presets_of
from backend.service.presets.presets import PresetFilter
from backend.service.workspace import Workspace


class PresetComparison(Frozen):
    """`original` is the model unchanged where its tokens are cheapest (on this machine for presets that are for it),
    None where nothing is known of it; its region and price stand in it. `rows` are the presets', in the order given."""

    concurrency: int
    original: Estimate | None
    rows: tuple[PresetTitle, ...]
    estimates: tuple[Estimate | None, ...]
    names: tuple[str, ...] = ()
    """Short names by what each does; an id may promise more than its figures hold."""
    suits: tuple[str, ...] = ()
    """For whom each is best at this load, in words."""

    def name(self, preset_id: str) -> str:
        return next((name for row, name in zip(self.rows, self.names, strict=True) if row.key == preset_id), preset_id)

    def suits_whom(self, preset_id: str) -> str:
        return next((words for row, words in zip(self.rows, self.suits, strict=True) if row.key == preset_id), "")

    def choose(self, goal: TargetGoal) -> PresetChoice:
        """Return the preset that wins at this load within the limits of `goal`."""
        return preset_choice.choose_preset(self.by_key, goal)

    @property
    def by_key(self) -> dict[str, Estimate | None]:
        return {row.key: estimate for row, estimate in zip(self.rows, self.estimates, strict=True)}

    def row(self, preset_id: str) -> PresetTitle | None:
        return next((row for row in self.rows if row.key == preset_id), None)


def compare(workspace: Workspace, chosen: Sequence[Preset], load: ExpectedLoad) -> PresetComparison:
    """Presets of one model at one load. Measures nothing."""
    estimates = [preset_figures.estimate(workspace, preset, load, (), probe=False).at(load) for preset in chosen]
    here = bool(chosen) and all(target_kind(preset.target) == "local" for preset in chosen)
    original = _estimate_original(workspace, chosen[0].model, load, here=here) if chosen else None
    entries = [
        PresetRow(p.id, p.goal, step_words.recipe_title(p.recipe), estimate)
        for p, estimate in zip(chosen, estimates, strict=True)
    ]
    rows = tuple(title_presets(entries, original))
    by_key = dict(zip((preset.id for preset in chosen), estimates, strict=True))
    return PresetComparison(
        concurrency=load.concurrency,
        original=original,
        rows=rows,
        estimates=tuple(estimates),
        names=tuple(presets.names(chosen)),
        suits=tuple(_suits(preset, by_key) for preset in chosen),
    )


def _suits(preset: Preset, estimates: dict[str, Estimate | None]) -> str:
    """Return for whom the preset is best; of one that leads in nothing and changes no weights, that answers stay."""
    words = preset_choice.suits(preset.id, estimates)
    changes = preset.recipe.step("quantize") or preset.recipe.step("prune")
    leads = words in preset_choice.LEADS
    return words if changes or leads else preset_choice.UNCHANGED


def compare_by_model(workspace: Workspace, names: Iterable[str], load: ExpectedLoad) -> dict[str, PresetComparison]:
    """Compare all presets of each model, since a title such as the lowest cost applies to one among all."""
    presets_by_model = {
        name: [known.preset for known in presets_of.listing(workspace, PresetFilter(model=name))]
        for name in dict.fromkeys(names)
    }
    return {name: compare(workspace, chosen, load) for name, chosen in presets_by_model.items()}


def short_names(workspace: Workspace, chosen: Sequence[Preset], load: ExpectedLoad) -> list[str]:
    """Short names of presets side by side: a goal's only where the figures hold it at the load and at each of
    CONCURRENCIES."""
    models = [preset.model for preset in chosen]
    neighbours = [compare_by_model(workspace, models, at_level) for at_level in load.list_with(presets.CONCURRENCIES)]
    titles = []
    for preset in chosen:
        rows = [row for comparisons in neighbours if (row := comparisons[preset.model].row(preset.id))]
        titles.append(preset_titles.title_at_all_loads(rows, step_words.recipe_title(preset.recipe)))
    return presets.labels(chosen, titles)


def _estimate_original(workspace: Workspace, name: str, load: ExpectedLoad, *, here: bool) -> Estimate | None:
    try:
        model = models.resolve_facts(workspace, name)
        fitted = fit_context(load, model.max_positions)
        return token_prices.estimate_tokens(workspace, model, ORIGINAL, "local" if here else None, fitted)
    except WhetstoneError:
        return None
