"""From a model and a recipe to a queued optimize job, every reason against it told first."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from backend.catalog.text import calibration_text
from backend.domain.errors import ImpossibleStack, InvalidWorkload, NotEnoughDisk, UnknownModel
from backend.domain.jobs.jobs import OptimizeSpec
from backend.domain.model.facts import ModelCard, ModelFacts, PublishedModel
from backend.domain.needs import recovery
from backend.domain.planner import estimate
from backend.domain.planner.choose import Deployment, Goal
from backend.domain.planner.estimate import Need
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe import libraries
from backend.domain.recipe.recipe import Prune, Quantize, Recipe
from backend.domain.rules.plan import Plan, Verdict
from backend.hardware import engines, probe
from backend.service import paths
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models
from backend.service.models.models import MAX_SHOWN
from backend.service.plans import preview as outlook
from backend.service.plans import recipes
from backend.service.workspace import Workspace

CALIBRATION_LENGTH = int(Quantize.model_fields["length"].default)
"""Tokens a sequence where no step says it."""


class Prepared(BaseModel):
    """All that is known before the start."""

    spec: OptimizeSpec
    need: Need


class Preview(BaseModel):
    """What a job would do. `spec` is None for a model that is known by published facts alone, which no job can work on."""

    plan: Plan
    need: Need
    spec: OptimizeSpec | None
    deployment: Deployment | None
    where: str
    """What runs here, and what is only planned."""


def preview(
    workspace: Workspace, source: str, recipe: Recipe, *, target: str = "local", goal: Goal | None = None,
    load: ExpectedLoad | None = None, seed: int = 0,
) -> Preview:  # fmt: skip
    """Like `prepare`, and also for published models without weights. Raises what `prepare` raises."""
    model = models.facts(workspace, source)
    if isinstance(model, ModelCard):
        made = prepare(workspace, source, recipe, target=target, goal=goal, load=load, seed=seed)
        spec = made.spec
        return Preview(
            plan=spec.plan, need=made.need, spec=spec, deployment=spec.deployment, where=where(model, spec.deployment, recipe)
        )
    deployment = outlook.deployment(workspace, model, recipe, target, goal, load)
    planned = outlook.degree(recipe, deployment.tensor_parallel) if deployment else recipe
    verdict, draft = recipes.check(workspace, model, planned, deployment.target if deployment else target)
    if verdict.plan is None:
        raise ImpossibleStack(_sentence(verdict))
    need = estimate.need(model, recipe, draft)
    said = where(model, deployment, recipe)
    return Preview(plan=verdict.plan, need=need, spec=None, deployment=deployment, where=said)


def where(model: ModelFacts, deployment: Deployment | None, recipe: Recipe | None = None) -> str:
    """What runs here and what is only planned, in words."""
    if isinstance(model, PublishedModel):
        return f"Nothing can run: no weights of {model.id} are here. {no_weights(model)}"
    here = "The job runs on this machine."
    if deployment is None:
        return here
    again = " What it compiles is for this machine: there the first start compiles anew." if _compiles(recipe) else ""
    return f"{here} Serving on {deployment.target} is planned and kept with the job: this version starts nothing there.{again}"


def _compiles(recipe: Recipe | None) -> bool:
    return recipe is not None and recipe.step("compile") is not None


def no_weights(model: PublishedModel) -> str:
    """How to come by the weights."""
    return f"Import them first: `whetstone models import {model.hf_repo}`."


def prepare(
    workspace: Workspace, source: str, recipe: Recipe, *, target: str = "local", goal: Goal | None = None,
    load: ExpectedLoad | None = None, seed: int = 0,
) -> Prepared:  # fmt: skip
    """Check everything that can be checked without starting. The job runs here whatever the target; `auto` or an instance is
    where the result is meant to be served, and the recipe must be valid there too.

    Raises UnknownModel, InvalidModel, InvalidRecipe, ImpossibleStack, EngineMissing, InvalidWorkload, NotEnoughDisk;
    ReadOnly in a demonstration.
    """
    workspace.check_writable()
    model = _with_weights(workspace, source)
    deployment = outlook.deployment(workspace, model, recipe, target, goal, load)
    here = "local" if deployment else target
    verdict, draft = recipes.check(workspace, model, recipe, here)
    if verdict.plan is None:
        raise ImpossibleStack(f"{'The job would run on this machine. ' if deployment else ''}{_sentence(verdict)}")
    if recipe.step("compile"):
        engines.engine_python(workspace.settings, "serve")
    for environment in {libraries.environment(step.engine) for step in verdict.plan.steps} - {None}:
        engines.engine_python(workspace.settings, str(environment))
    need = estimate.need(model, recipe, draft)
    _check_disk(workspace, need)
    spec = OptimizeSpec(
        model=model,
        recipe=recipe,
        plan=verdict.plan,
        target=here,
        deployment=deployment,
        draft=draft if isinstance(draft, ModelCard) else None,
        calibration_path=_calibration(model, recipe),
        seed=seed,
    )
    return Prepared(spec=spec, need=need)


def submit(workspace: Workspace, prepared: Prepared, *, submission: str | None = None) -> JobView:
    """Queue it."""
    return jobs.submit(workspace, prepared.spec, title(prepared.spec.model, prepared.spec.recipe), submission=submission)


def title(model: ModelCard, recipe: Recipe) -> str:
    """What the job is called; those of one model and recipe have the same."""
    return f"Optimize {model.id} with {recipe.name}"


def _sentence(verdict: Verdict) -> str:
    reasons = " ".join(reason.message for reason in verdict.reasons)
    if verdict.suggestion is None:
        return reasons
    names = " + ".join(step.technique for step in verdict.suggestion.steps) or "no steps"
    return f"{reasons} Nearest valid recipe: {names}."


def _with_weights(workspace: Workspace, source: str) -> ModelCard:
    """Raises UnknownModel, which says how to import the weights of a model that is known by published facts alone."""
    model = models.facts(workspace, source)
    if isinstance(model, ModelCard):
        return model
    if isinstance(model, PublishedModel):
        raise UnknownModel(f"No weights of {model.id} are here, and a job needs them. {no_weights(model)}")
    return models.resolve(workspace, source)


def _check_disk(workspace: Workspace, need: Need) -> None:
    free = probe.free_disk(workspace.settings.home)
    if free < need.disk_bytes:
        raise NotEnoughDisk(
            f"This job needs {need.disk_bytes / 1e9:.2f} GB of disk and {free / 1e9:.2f} GB are free under "
            f"{workspace.settings.home}: free some, or set WHETSTONE_HOME to a larger disk."
        )


def _calibration(model: ModelCard, recipe: Recipe) -> str | None:
    steps = [step for step in recipe.steps if isinstance(step, Quantize | Prune)]
    if not steps:
        return None
    length = max(step.length if isinstance(step, Quantize) else CALIBRATION_LENGTH for step in steps)
    named = [step.calibration for step in steps if step.calibration != "bundled"]
    path = paths.file(named[0]) if named else None
    if named and path is None:
        shown = named[0][:MAX_SHOWN]
        raise InvalidWorkload(f"There is no calibration file `{shown}`: give a JSONL, Parquet or text file, or leave it out.")
    given = str(path) if path else None
    calibration_text.check(given, Path(model.path), length)
    if recovery.asked(recipe):
        calibration_text.check_spare(given, Path(model.path), *recovery.calibration(recipe))
    return given


def model_card(workspace: Workspace, source: str) -> ModelCard:
    """The card a source resolves to. Raises UnknownModel, InvalidModel."""
    return models.resolve(workspace, source)
