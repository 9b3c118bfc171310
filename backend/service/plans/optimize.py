"""Optimize jobs: preview, prepare and submit a case; all reasons against it are known before the start."""

from __future__ import annotations

from backend.domain.errors import ImpossibleStack, InvalidRecipe, UnknownModel
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import OptimizeSpec
from backend.domain.jobs.terms import Terms
from backend.domain.machine.targets import target_kind
from backend.domain.model.facts import ModelCard, ModelFacts, PublishedModel
from backend.domain.planner import estimate
from backend.domain.planner.estimate import JobNeeds
from backend.domain.planner.target_choice import Deployment, TargetGoal
from backend.domain.recipe import quantization_engines, step_words
from backend.domain.recipe.recipe import Recipe
from backend.domain.recipe.serving import source_settings
from backend.domain.roles import Action
from backend.domain.rules import gguf_rules
from backend.domain.rules import plan as rules_plan
from backend.domain.rules.plan import Plan, Verdict
from backend.hardware import engine_status
from backend.present.source_names import short_name
from backend.service.jobs import artifact_storage, jobs
from backend.service.jobs.jobs import FollowUpJob, JobView
from backend.service.plans import calibration, cases
from backend.service.plans.cases import Case
from backend.service.workspace import Workspace

RUNNERS_UP = 12
"""Losers that a job's specification keeps: those that could do it come first."""


class PreparedOptimize(Frozen):
    """A job's specification and needs before it starts."""

    spec: OptimizeSpec
    need: JobNeeds


class OptimizePreview(Frozen):
    """The plan and needs of a job before it is submitted. `spec` is None for a model without weights here."""

    plan: Plan
    need: JobNeeds
    spec: OptimizeSpec | None
    deployment: Deployment | None
    where: str
    """A text on what runs here and what is only planned."""


def preview(workspace: Workspace, case: Case, *, seed: int = 0) -> OptimizePreview:
    """Like `prepare`, and also for published models without weights. Raises what `prepare` raises."""
    if isinstance(case.model, ModelCard):
        prepared = prepare(workspace, case, seed=seed)
        plan, need, spec, placed = prepared.spec.plan, prepared.need, prepared.spec, prepared.spec.deployment
    else:
        placed, spec = make_deployment(case), None
        if case.verdict.plan is None:
            raise ImpossibleStack(refusal_text(case.verdict))
        plan, need = case.verdict.plan, estimate.estimate_needs(case.model, case.recipe, case.draft)
    return OptimizePreview(
        plan=plan, need=need, spec=spec, deployment=placed, where=where_text(case.model, placed, case.recipe)
    )


def make_deployment(case: Case) -> Deployment | None:
    """Return where the job's result will be served: None for this machine, else the target or the instance that `auto`
    chose.

    Raises InvalidRecipe for a target that no job can be for, ImpossibleStack where the recipe is not valid there or
    nothing meets the goal.
    """
    if target_kind(case.target_name) == "local":
        return None
    if target_kind(case.target_name) == "sagemaker":
        raise InvalidRecipe(
            f"The managed toolkit of `{case.target_name}` runs the job itself: start it on Build or on the command "
            "line, where its AWS settings are given (docs/aws.md), or give the instance without `sagemaker:` to "
            "optimize here."
        )
    if case.verdict.plan is None or not case.works:
        raise ImpossibleStack(_why_not(case))
    # A named target, or the instance that `auto` chose.
    deployment = Deployment(
        target=case.target.name,
        tensor_parallel=case.verdict.plan.tensor_parallel,
        replicas=case.verdict.plan.replicas,
        price_per_hour=case.target.price_per_hour,
        why="As asked.",
    )
    choice = case.choice
    if choice is None:
        return deployment
    chosen = {
        "why": choice.why,
        "goal": case.goal or TargetGoal(),
        "job": choice.job,
        "losers": choice.losers[:RUNNERS_UP],
    }
    return deployment.model_copy(update=chosen)


def _why_not(case: Case) -> str:
    if case.choice is None:
        return " ".join(reason.message for reason in case.verdict.reasons)
    return " ".join([case.choice.why, *(f"{loser.target}: {loser.why}" for loser in case.choice.losers[:3])])


def where_text(model: ModelFacts, deployment: Deployment | None, recipe: Recipe) -> str:
    """Return a text on what runs here and what is only planned."""
    if isinstance(model, PublishedModel):
        return f"Nothing can run: no weights of {model.id} are here. {import_hint(model)}"
    here = "The job runs on this machine."
    if deployment is None:
        return here
    again = (
        " What it compiles is for this machine: there the first start compiles anew." if recipe.step("compile") else ""
    )
    planned = f"Serving on {deployment.target} is only planned: the job records it, and nothing is started there."
    return f"{here} {planned}{again}"


def import_hint(model: PublishedModel) -> str:
    """Return how to import the weights."""
    return f"Import them first: `whetstone models import {model.hf_repo}`."


def prepare(workspace: Workspace, case: Case, *, seed: int = 0, scored_windows: int | None = None) -> PreparedOptimize:
    """Check everything that can be checked without starting. The job runs here whatever the target; `auto` or an
    instance is where the result is meant to be served, and the recipe must be valid here too. `scored_windows` of
    held-out text measure its quality, None for as many as the model's size allows.

    Raises UnknownModel where there are no weights, InvalidRecipe, ImpossibleStack, EngineMissing, InvalidWorkload,
    NotEnoughDisk, QuotaExceeded;
    ReadOnly in a demonstration.
    """
    # 1. Require weights and steps.
    workspace.check(Action.SUBMIT)
    model, recipe = require_weights(case.model), case.recipe
    if not recipe.steps:
        settings = source_settings.write_differences(recipe.serving) or "@max_num_seqs=8"
        raise InvalidRecipe(
            "The recipe has no steps, so a job would only copy the model: add a step, or serve and evaluate the "
            f"model as it is. Settings are written behind it: `whetstone evaluate MODEL MODEL{settings}`."
        )
    # 2. The recipe must be valid at its target and here.
    placed = make_deployment(case)
    if case.facts.place == "neuron":
        raise InvalidRecipe(
            f"A job for `{case.target_name}` is started on Build or with `whetstone optimize` and {{}} set to it.",
            "target",
        )
    here = case if placed is None else cases.resolve(workspace, model, recipe)
    planned = here.verdict.plan
    if planned is None and placed is not None and here.verdict.outcome == "does-not-fit":
        planned = rules_plan.make_plan(model, recipe, here.facts)  # what is served elsewhere need not fit here
    if planned is None:
        raise ImpossibleStack(f"{'The job would run on this machine. ' if placed else ''}{refusal_text(here.verdict)}")
    # 3. Require the engines, disk and quota.
    require_engines(workspace, recipe, planned)
    need = estimate.estimate_needs(model, recipe, here.draft)
    artifact_storage.check_disk(workspace, need.disk_bytes)
    artifact_storage.check_quota(workspace, need.disk_bytes)
    # 4. Freeze the specification.
    spec = OptimizeSpec(
        model=model,
        recipe=recipe,
        plan=planned,
        target=here.target_name,
        deployment=placed,
        draft=here.draft if isinstance(here.draft, ModelCard) else None,
        calibration_path=calibration.check_file(model, recipe),
        seed=seed,
        scored_windows=scored_windows,
    )
    return PreparedOptimize(spec=spec, need=need)


def require_engines(workspace: Workspace, recipe: Recipe, planned: Plan) -> None:
    """Raises EngineMissing where an environment that the steps run in is not installed."""
    if recipe.step("compile"):
        engine_status.engine_python(workspace.settings, "serve")
    for environment in {quantization_engines.environment(step.engine) for step in planned.steps} - {None}:
        engine_status.engine_python(workspace.settings, str(environment))
    if gguf_rules.find_step(recipe) is not None:
        engine_status.quantizer_folder(workspace.settings)


def submit(
    workspace: Workspace,
    prepared: PreparedOptimize,
    *,
    submission: str | None = None,
    terms: Terms | None = None,
    then: FollowUpJob | None = None,
) -> JobView:
    """Queue the job, and the job that follows it, if any (`evaluations.follow_up`)."""
    named = title(prepared.spec.model, prepared.spec.recipe)
    return jobs.submit(workspace, prepared.spec, named, submission=submission, terms=terms, then=then)


def title(model: ModelCard, recipe: Recipe) -> str:
    """Return the job's title, the same for all jobs of one model and recipe."""
    return f"Optimize {short_name(model.id)} with {recipe.name}"


def refusal_text(verdict: Verdict) -> str:
    """Return the reasons against a recipe and its closest valid alternative."""
    reasons = " ".join(reason.message for reason in verdict.reasons)
    if verdict.suggestion is None:
        return reasons
    names = step_words.steps_line(verdict.suggestion, empty="no steps")
    where = f" on {verdict.suggestion_target}" if verdict.suggestion_target else ""
    return f"{reasons} Nearest valid recipe: {names}{where}."


def require_weights(model: ModelFacts) -> ModelCard:
    """Raises UnknownModel, which says how to import the weights of a model that is known by published facts alone."""
    if isinstance(model, ModelCard):
        return model
    assert isinstance(model, PublishedModel)
    raise UnknownModel(f"No weights of {model.id} are here, and a job needs them. {import_hint(model)}")
