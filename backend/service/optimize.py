"""From a model and a recipe to a queued optimize job, every reason against it told first."""

from __future__ import annotations

from pydantic import BaseModel

from backend.domain import compat, estimate
from backend.domain.errors import ImpossibleStack, InvalidRecipe, InvalidWorkload, NotEnoughDisk
from backend.domain.estimate import Need
from backend.domain.jobs import OptimizeSpec
from backend.domain.model import ModelCard
from backend.domain.recipe import Quantize, Recipe
from backend.hardware import engines, probe
from backend.service import jobs, models, paths, recipes
from backend.service.jobs import JobView
from backend.service.models import MAX_SHOWN
from backend.service.workspace import Workspace


class Prepared(BaseModel):
    """All that is known before the start."""

    spec: OptimizeSpec
    need: Need


def prepare(workspace: Workspace, source: str, recipe: Recipe, *, target: str = "local", seed: int = 0) -> Prepared:
    """Check everything that can be checked without starting.

    Raises UnknownModel, InvalidModel, InvalidRecipe, ImpossibleStack, EngineMissing, InvalidWorkload, NotEnoughDisk;
    ReadOnly in a demonstration.
    """
    workspace.check_writable()
    model = models.resolve(workspace, source)
    _check_here(target)
    verdict, draft = recipes.check(workspace, model, recipe, target)
    if verdict.plan is None:
        raise ImpossibleStack(_sentence(verdict))
    if recipe.step("compile"):
        engines.engine_python(workspace.settings, "serve")
    need = estimate.need(model, recipe, draft)
    _check_disk(workspace, need)
    spec = OptimizeSpec(
        model=model,
        recipe=recipe,
        plan=verdict.plan,
        target=target,
        draft=draft if isinstance(draft, ModelCard) else None,
        calibration_path=_calibration(recipe),
        seed=seed,
    )
    return Prepared(spec=spec, need=need)


def submit(workspace: Workspace, prepared: Prepared, *, submission: str | None = None) -> JobView:
    """Queue it."""
    return jobs.submit(workspace, prepared.spec, title(prepared.spec.model, prepared.spec.recipe), submission=submission)


def title(model: ModelCard, recipe: Recipe) -> str:
    """What the job is called; those of one model and recipe have the same."""
    return f"Optimize {model.id} with {recipe.name}"


def _sentence(verdict: compat.Verdict) -> str:
    reasons = " ".join(reason.message for reason in verdict.reasons)
    if verdict.suggestion is None:
        return reasons
    names = " + ".join(step.technique for step in verdict.suggestion.steps) or "no steps"
    return f"{reasons} Nearest valid recipe: {names}."


def _check_here(target: str) -> None:
    if target != "auto" and not target.startswith("local"):
        raise InvalidRecipe(
            f"The target `{target}` is for planning: a job of this version runs on this machine, `--target local`."
        )


def _check_disk(workspace: Workspace, need: Need) -> None:
    free = probe.free_disk(workspace.settings.home)
    if free < need.disk_bytes:
        raise NotEnoughDisk(
            f"This job needs {need.disk_bytes / 1e9:.2f} GB of disk and {free / 1e9:.2f} GB are free under "
            f"{workspace.settings.home}: free some, or set WHETSTONE_HOME to a larger disk."
        )


def _calibration(recipe: Recipe) -> str | None:
    step = recipe.step("quantize")
    if not isinstance(step, Quantize) or step.calibration == "bundled":
        return None
    path = paths.file(step.calibration)
    if path is None:
        shown = step.calibration[:MAX_SHOWN]
        raise InvalidWorkload(f"There is no calibration file `{shown}`: give a text or JSONL file, or leave it out.")
    return str(path)


def model_card(workspace: Workspace, source: str) -> ModelCard:
    """The card a source resolves to. Raises UnknownModel, InvalidModel."""
    return models.resolve(workspace, source)
