"""Check whether the recipe can be submitted for a target: unknown, refused, blocked or ready. No widgets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from app.builder import job_terms, target_choice
from app.builder.aws_settings import Preview
from app.builder.job_terms import Submission
from app.builder.target_choice import PlanRequest
from app.field_labels import error_sentence
from backend.domain.errors import EngineMissing, InvalidOptions, WhetstoneError
from backend.domain.jobs.eta import TimeLeft
from backend.domain.jobs.jobs import JobKind
from backend.domain.model.facts import ModelFacts, PublishedModel
from backend.domain.planner import estimate
from backend.domain.planner.estimate import Estimate, JobNeeds
from backend.domain.recipe.recipe import Recipe
from backend.domain.roles import Action
from backend.service import Workspace
from backend.service.jobs import progress
from backend.service.plans import cases, estimates, neuron_compilation, optimize, sagemaker_jobs
from backend.service.plans.cases import Case
from backend.service.plans.optimize import PreparedOptimize

MADE_HERE = frozenset({"local", "neuron"})
"""Kinds of targets whose estimate is of a job on this machine."""


class Forecast(NamedTuple):
    """The plan of the rules, the needs of the job and the estimate, once target and draft are resolved."""

    case: Case
    needs: JobNeeds
    estimate: Estimate | None


class Unknown(NamedTuple):
    """The recipe, the target or the draft cannot be resolved. `message` is empty if there is no recipe yet."""

    message: str = ""
    unknown_target: bool = False


class Refused(NamedTuple):
    """The rules refuse the recipe; the reasons are in the plan of the forecast."""

    forecast: Forecast


class Blocked(NamedTuple):
    """The recipe is valid, and `obstacle` says why it cannot be submitted.

    `can_be_fixed`: only weights or a setting are missing. `preview`: the dry run, if there is one.
    """

    forecast: Forecast
    obstacle: str
    can_be_fixed: bool = False
    preview: Preview | None = None


class Ready(NamedTuple):
    """The recipe can be submitted. `duration` is what earlier jobs of this kind took here; None if there are none.

    The estimate has it too, unless it is one of another machine.
    """

    forecast: Forecast
    submission: Submission
    duration: TimeLeft | None = None
    preview: Preview | None = None


Readiness = Unknown | Refused | Blocked | Ready


def check(opened: Workspace, model: ModelFacts, recipe: Recipe, request: PlanRequest) -> Readiness:
    """Return the state of the recipe after every check that needs no start."""
    # 1. Resolve the target and the draft, and ask the rules.
    try:
        case = cases.resolve(opened, model, recipe, request.target, request.goal, request.load)
    except WhetstoneError as error:
        unknown_target = request.target not in target_choice.target_labels(opened)
        return Unknown(error_sentence(error), unknown_target)
    needs = estimate.estimate_needs(model, recipe, case.draft)
    forecast = Forecast(case, needs, _estimate(opened, case, request))
    if not case.works:
        return Refused(forecast)
    # 2. Prepare the job where it is to run.
    if case.target.kind == "sagemaker":
        return _check_sagemaker(opened, forecast, request.aws)
    if case.facts.place == "neuron":
        return _check_compilation(opened, forecast)
    return _check_local(opened, forecast, optimize.prepare)


def find_forecast(readiness: Readiness) -> Forecast | None:
    """Return the forecast; None while the target or the draft is unknown."""
    return None if isinstance(readiness, Unknown) else readiness.forecast


def find_case(readiness: Readiness) -> Case | None:
    """Return the resolved case; None while the target or the draft is unknown."""
    forecast = find_forecast(readiness)
    return forecast.case if forecast else None


def find_unserved(readiness: Readiness) -> str | None:
    """Return why nothing at the target serves the result; None where something does, or where it is unknown."""
    forecast = find_forecast(readiness)
    return forecast.estimate.unserved if forecast and forecast.estimate else None


def find_preview(readiness: Readiness) -> Preview | None:
    """Return what AWS would be asked or the compiler would do; None for a plain job of this machine."""
    return readiness.preview if isinstance(readiness, Blocked | Ready) else None


def known_target(readiness: Readiness) -> str:
    """Return a target that exists, to try other recipes on."""
    case = find_case(readiness)
    return case.target.name if case else "local"


def _check_local(
    opened: Workspace,
    forecast: Forecast,
    prepare: Callable[[Workspace, Case], PreparedOptimize],
    preview: Preview | None = None,
) -> Readiness:
    """Check a job of this machine."""
    case = forecast.case
    # 1. Without weights there is only a plan.
    if isinstance(case.model, PublishedModel):
        obstacle = f"To optimize it, its weights are needed. {optimize.import_hint(case.model)}"
        return Blocked(forecast, obstacle, can_be_fixed=True, preview=preview)
    # 2. Prepare the job.
    try:
        prepared = prepare(opened, case)
    except WhetstoneError as error:
        can_be_fixed = isinstance(error, EngineMissing) and preview is not None
        return Blocked(forecast, error_sentence(error), can_be_fixed, preview)
    # 3. Look up how long such jobs took here, which an estimate of another machine does not have.
    title = optimize.title(prepared.spec.model, case.recipe)
    duration = progress.expected_time(opened, JobKind.OPTIMIZE, title, spec=prepared.spec)
    if duration is not None and forecast.estimate is not None and case.target.kind in MADE_HERE:
        timed = forecast.estimate.with_job_seconds((duration.low, duration.high))
        forecast = forecast._replace(estimate=timed)
    return Ready(forecast, job_terms.local_submission(opened, prepared), duration, preview)


def _check_sagemaker(opened: Workspace, forecast: Forecast, settings: tuple[str, ...]) -> Readiness:
    """Check a job of AWS with its settings."""
    try:
        preview = sagemaker_jobs.preview(opened, forecast.case, settings)
    except WhetstoneError as error:
        return Blocked(forecast, error_sentence(error), can_be_fixed=isinstance(error, InvalidOptions))
    if not preview.requests:
        obstacle = f"{' '.join(preview.notes)} There is nothing to start."
        return Blocked(forecast, obstacle, can_be_fixed=True, preview=preview)
    refusal = opened.refusal(Action.SUBMIT)
    if refusal:
        return Blocked(forecast, refusal, can_be_fixed=True, preview=preview)
    submission = job_terms.sagemaker_submission(opened, forecast.case, settings, preview)
    return Ready(forecast, submission, preview=preview)


def _check_compilation(opened: Workspace, forecast: Forecast) -> Readiness:
    """Check a compilation on this machine, or an entry of the compile cache."""
    try:
        preview = neuron_compilation.preview(opened, forecast.case)
    except WhetstoneError as error:
        return Blocked(forecast, error_sentence(error))
    return _check_local(opened, forecast, partial(neuron_compilation.prepare, known=preview), preview)


def _estimate(opened: Workspace, case: Case, request: PlanRequest) -> Estimate | None:
    if case.choice is not None:
        return case.choice.winner
    if not case.works:
        return None
    return estimates.estimate_one(opened, case, request.load, price_per_hour=request.price)
