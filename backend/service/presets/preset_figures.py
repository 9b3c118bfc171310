"""The figures of presets: estimated by the planner, measured by this home's evaluations and by those that come with
Whetstone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from backend.catalog.bundled import evaluations as bundled
from backend.domain.errors import Unreadable, WhetstoneError
from backend.domain.evaluation.document import Evaluation, read_evaluation
from backend.domain.machine import price_list
from backend.domain.model.facts import PublishedModel
from backend.domain.planner.planned_load import PlannedLoad, fit_context
from backend.domain.planner.presets import CONCURRENCIES, Claim, Preset
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.what_if.slice_means import with_slice_means
from backend.present import preset_figures as preset_figures
from backend.present.preset_figures import Estimated, Measurement
from backend.service.machines import targets
from backend.service.models import catalog_sync, models
from backend.service.plans import auto_target, cases, estimates
from backend.service.workspace import Workspace
from backend.store import presets as kept
from backend.store.tables import EvaluationRow

EVALUATIONS_SEARCHED = 20
"""Newest evaluations against a model that are searched for the recipes of its presets."""


def estimate(
    workspace: Workspace,
    preset: Preset,
    load: ExpectedLoad | None = None,
    concurrencies: Sequence[int] = CONCURRENCIES,
    *,
    probe: bool = True,
) -> Estimated:
    """The preset on its own model and target, at the load and at each other concurrency; the reason where that is not
    possible here.

    Without `probe` this machine's speed is what was measured before, or unknown.
    """
    try:
        model = models.resolve_facts(workspace, preset.model)
        target = auto_target.resolve_target(workspace, model, preset.recipe, preset.target)
        case = cases.resolve(workspace, model, preset.recipe, target, probe=probe)
        fitted = fit_context(load or PlannedLoad().expected, model.max_positions)
        return Estimated(levels=tuple(estimates.estimate_loads(workspace, case, fitted.list_with(concurrencies))))
    except WhetstoneError as error:
        return Estimated(why_not=str(error))


class PresetEvaluations:
    """The evaluations that may have measured presets, each model's rows read once."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._rows: dict[str, list[EvaluationRow]] = {}

    def measurements(self, preset: Preset) -> tuple[Measurement, ...]:
        """Every measurement of the preset's model with the preset's recipe, latest first."""
        here = [_measurement_in(row, preset) for row in self._rows_of_model(preset.model)]
        with_us = [
            preset_figures.find(known.document, preset.recipe, known.id, known.recipes, bundled=True)
            for known in bundled.load()
            if known.model == preset.model
        ]
        return preset_figures.unique([measurement for measurement in [*here, *with_us] if measurement is not None])

    def variants(self, model: str) -> tuple[Measurement, ...]:
        """Return the measurements of all variants of the newest evaluation of the model in this home."""
        for row in self._rows_of_model(model):
            try:
                document = _document(row.document)
            except Unreadable:  # `damaged` names it; an older one may still be good
                continue
            return tuple(preset_figures.measurement(document, result, row.id) for result in document.variants)
        return ()

    def _rows_of_model(self, model: str) -> list[EvaluationRow]:
        if model not in self._rows:
            names, prefix = _evaluation_names(self._workspace, model)
            with self._workspace.store.read() as session:
                self._rows[model] = kept.list_evaluations(session, names, prefix, limit=EVALUATIONS_SEARCHED)
        return self._rows[model]


def _measurement_in(row: EvaluationRow, preset: Preset) -> Measurement | None:
    if preset.recipe.steps and preset.recipe.hash not in row.document:  # the document need not be read
        return None
    try:
        document = _document(row.document)
    except Unreadable:  # `damaged` names it; the other evaluations are still good
        return None
    return preset_figures.find(document, preset.recipe, row.id)


@lru_cache(maxsize=64)
def _document(text: str) -> Evaluation:
    return with_slice_means(read_evaluation(text))


def _evaluation_names(workspace: Workspace, model: str) -> tuple[list[str], str | None]:
    """Under which names the model may have been evaluated here, and how those of its hub imports begin."""
    try:
        model_facts = models.resolve_facts(workspace, model)
    except WhetstoneError:
        return [model], None
    hub = model_facts.hf_repo if isinstance(model_facts, PublishedModel) else None
    return list({model, model_facts.id, *([hub] if hub else [])}), f"{hub}@" if hub else None


def model_names(workspace: Workspace, model: str) -> list[str]:
    """Every name by which a preset may mean that model: its id, its hub id, and the published id of a hub import."""
    names, _ = _evaluation_names(workspace, model)
    published_model = catalog_sync.find_known(workspace, model.partition("@")[0])
    return list(dict.fromkeys([*names, *([published_model.id, published_model.hf_repo] if published_model else [])]))


def price_claim_today(workspace: Workspace, preset: Preset, claim: Claim) -> str | None:
    """A published comparison of prices held against today's; None for any other claim, or where a price is not
    known."""
    if claim.cheaper_than is None:
        return None
    try:
        mine, other = (targets.find(workspace, name) for name in (preset.target, claim.cheaper_than))
    except WhetstoneError:
        return None
    if not mine.price_per_hour or not other.price_per_hour:
        return None
    share = 1 - mine.price_per_hour / other.price_per_hour
    words = f"{share:.2%} cheaper" if share >= 0 else f"{-share:.2%} dearer"
    prices = f"{mine.price_per_hour:,.4g} against {other.price_per_hour:,.4g} USD per hour"
    return f"At today's prices {words}: {prices}, {price_list.price_note(mine.instance)}."
