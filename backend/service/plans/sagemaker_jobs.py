"""From a case on a `sagemaker:` target to a queued job that AWS runs: the exact requests, and every reason against
them."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.errors import ImpossibleStack, InvalidRecipe
from backend.domain.frozen import Facts, Frozen
from backend.domain.jobs.jobs import ManagedSpec
from backend.domain.jobs.terms import Terms
from backend.domain.machine import price_list
from backend.domain.machine.targets import hardware_name, target_kind
from backend.domain.managed import iam_policy, optimization_requests
from backend.domain.managed.aws_settings import AwsSettings, read_settings
from backend.domain.managed.optimization_requests import OptimizationRequests
from backend.domain.model.facts import ModelCard, PublishedModel
from backend.domain.planner import estimate
from backend.domain.roles import Action
from backend.present.source_names import short_name
from backend.service.jobs import artifact_storage, jobs
from backend.service.jobs.jobs import JobView
from backend.service.plans import optimize
from backend.service.plans.cases import Case
from backend.service.plans.optimize import refusal_text
from backend.service.workspace import Workspace

TRIAL = "j-0000000000"
"""Stands for a job's id in the name of a request that is only shown."""
PRICE = (
    "USD per hour of the instance that the result is for; SageMaker chooses the instance that the job runs on "
    "and bills that one."
)


class ManagedPreview(Frozen):
    """`requests`: the parameters of each `create_optimization_job`; none where no job is needed, as `notes` then
    say."""

    model: str
    target: str
    requests: tuple[Facts, ...]
    notes: tuple[str, ...]
    price_per_hour: float | None
    price: str = PRICE


def is_sagemaker(target: str) -> bool:
    """Tell whether AWS runs the job of this target."""
    return target_kind(target) == "sagemaker"


def preview(workspace: Workspace, case: Case, aws_settings: Sequence[str]) -> ManagedPreview:
    """Return the requests that `submit` would send to AWS. Raises as `submit`, except if no job is needed."""
    planned, _ = _requests(workspace, case, aws_settings)
    name = optimization_requests.job_name(TRIAL, 1)
    return ManagedPreview(
        model=case.model.id,
        target=case.target_name,
        requests=tuple(optimization_requests.with_name(each, name) for each in planned.create),
        notes=planned.notes,
        price_per_hour=case.target.price_per_hour,
        price=PRICE.replace("USD per hour", f"USD per hour{price_list.discount_text(case.target.discount)}", 1),
    )


def policy_text(workspace: Workspace, case: Case, aws_settings: Sequence[str]) -> str:
    """The IAM policy of who submits it. Raises what `submit` raises."""
    planned, settings = _requests(workspace, case, aws_settings)
    if not planned.create or settings is None:
        raise InvalidRecipe(f"{' '.join(planned.notes)} There is nothing to start.")
    return iam_policy.text(planned.create[0], settings.region, fetched=_parent(case, settings) is not None)


def submit(
    workspace: Workspace,
    case: Case,
    aws_settings: Sequence[str],
    *,
    submission: str | None = None,
    terms: Terms | None = None,
) -> JobView:
    """Queue the job. `aws_settings`: `NAME=VALUE` settings, which count before the environment's.

    Raises InvalidOptions for settings that lack or are wrong, ImpossibleStack with the nearest recipe that works,
    InvalidRecipe where no job is needed.
    """
    # 1. Make the request.
    workspace.check(Action.SUBMIT)
    planned, settings = _requests(workspace, case, aws_settings)
    if not planned.create or settings is None:
        raise InvalidRecipe(f"{' '.join(planned.notes)} There is nothing to start.")
    (request,) = planned.create
    # 2. Check the quota if the result is fetched.
    parent = _parent(case, settings)
    if parent is not None:
        artifact_storage.check_quota(workspace, estimate.estimate_needs(parent, case.recipe, case.draft).disk_bytes)
    # 3. Freeze the specification and queue the job.
    spec = ManagedSpec(
        model=case.model.id,
        recipe=case.recipe,
        target=case.target_name,
        request=request,
        region=settings.region,
        parent=parent,
        weights=case.model.path if isinstance(case.model, ModelCard) and not settings.source else None,
        draft=case.draft if parent and isinstance(case.draft, ModelCard) else None,
        price_per_hour=case.target.price_per_hour,
    )
    instance = hardware_name(case.target.name)
    title = f"Optimize {short_name(case.model.id)} with {case.recipe.name} on SageMaker for {instance}"
    return jobs.submit(workspace, spec, title, submission=submission, terms=terms)


def _parent(case: Case, settings: AwsSettings) -> ModelCard | None:
    """The model whose optimized weights become an artifact; None where the result stays in S3."""
    here = isinstance(case.model, ModelCard) and not isinstance(case.draft, PublishedModel)
    if not (here and settings.fetch and optimization_requests.is_servable(case.recipe)):
        return None
    return optimize.require_weights(case.model)


def _steps_around(case: Case, settings: AwsSettings) -> list[str]:
    """Return one sentence for each step before and after the call."""
    sentences = []
    if not settings.source:
        sentences.append(
            f"The weights in {optimize.require_weights(case.model).path} are uploaded first, into a folder that is "
            "named by their content; what is there already is not sent again."
        )
    if _parent(case, settings) is not None:
        return [*sentences, "The result is fetched and becomes an artifact here."]
    if not settings.fetch:
        why = "as requested"
    elif isinstance(case.model, PublishedModel):
        why = "since no weights of the model are here to compare it with"
    else:
        why = "since only quantized weights become an artifact here"
    return [*sentences, f"The result stays in S3, {why}."]


def _requests(
    workspace: Workspace, case: Case, aws_settings: Sequence[str]
) -> tuple[OptimizationRequests, AwsSettings | None]:
    """And the settings; None where no job is needed."""
    if case.verdict.plan is None:
        raise ImpossibleStack(refusal_text(case.verdict))
    degree, hardware = case.verdict.plan.tensor_parallel, case.target.device.hardware
    if not optimization_requests.needs_job(case.recipe):
        return OptimizationRequests(create=(), notes=optimization_requests.notes(case.recipe, hardware)), None
    settings = read_settings(aws_settings, workspace.settings.aws, here=isinstance(case.model, ModelCard))
    assert case.target.instance is not None
    planned = optimization_requests.build_requests(
        case.recipe, case.target.instance.name, hardware, settings, tensor_parallel=degree
    )
    return planned.model_copy(update={"notes": (*planned.notes, *_steps_around(case, settings))}), settings
