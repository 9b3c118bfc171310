"""From a case on a `sagemaker:` target to a queued job that AWS runs: the exact requests, and every reason against them."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.errors import ImpossibleStack, InvalidRecipe
from backend.domain.frozen import Facts, Frozen
from backend.domain.jobs.jobs import ManagedSpec
from backend.domain.jobs.terms import Terms
from backend.domain.managed import requests
from backend.domain.managed.requests import Requests
from backend.domain.managed.settings import read
from backend.domain.roles import Action
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.plans.cases import Case
from backend.service.plans.optimize import sentence
from backend.service.workspace import Workspace

PREFIX = "sagemaker:"
TRIAL = "j-0000000000"
"""Stands for a job's id in the name of a request that is only shown."""
PRICE = (
    "USD an hour of the instance that the result is for; SageMaker chooses the instance that the job runs on and bills that one."
)


class ManagedPreview(Frozen):
    """`requests`: the parameters of each `create_optimization_job`; none where no job is needed, as `notes` then say."""

    model: str
    target: str
    requests: tuple[Facts, ...]
    notes: tuple[str, ...]
    price_per_hour: float | None
    price: str = PRICE


def asked(target: str) -> bool:
    """Whether the target is one where AWS runs the job."""
    return target.startswith(PREFIX)


def preview(workspace: Workspace, case: Case, given: Sequence[str]) -> ManagedPreview:
    """What `submit` would ask AWS for; nothing is asked. Raises what `submit` raises, but that no job is needed."""
    found, _ = _requests(workspace, case, given)
    name = requests.job_name(TRIAL, 1)
    return ManagedPreview(
        model=case.model.id, target=case.asked, requests=tuple(requests.named(each, name) for each in found.create),
        notes=found.notes, price_per_hour=case.target.price_per_hour,
    )  # fmt: skip


def submit(
    workspace: Workspace, case: Case, given: Sequence[str], *, submission: str | None = None, terms: Terms | None = None
) -> JobView:
    """Queue the job. `given`: `NAME=VALUE` settings, which count before the environment's.

    Raises InvalidOptions for settings that lack or are wrong, ImpossibleStack with the nearest recipe that works, InvalidRecipe
    where no job is needed.
    """
    workspace.check(Action.SUBMIT)
    found, region = _requests(workspace, case, given)
    if not found.create:
        raise InvalidRecipe(f"{' '.join(found.notes)} There is nothing to start.")
    (request,) = found.create
    spec = ManagedSpec(
        model=case.model.id, recipe=case.recipe, target=case.asked, request=request, region=region,
        price_per_hour=case.target.price_per_hour,
    )  # fmt: skip
    return jobs.submit(
        workspace, spec, f"Optimize {case.model.id} with {case.recipe.name} on SageMaker", submission=submission, terms=terms
    )


def _requests(workspace: Workspace, case: Case, given: Sequence[str]) -> tuple[Requests, str | None]:
    """And the region, where one is asked for."""
    if case.verdict.plan is None:
        raise ImpossibleStack(sentence(case.verdict))
    degree, hardware = case.verdict.plan.tensor_parallel, case.target.device.hardware
    if not requests.needs_job(case.recipe):
        return Requests(create=(), notes=requests.notes(case.recipe, hardware)), None
    settings = read(given, workspace.settings.aws)
    assert case.target.instance is not None
    made = requests.requests(case.recipe, case.target.instance.name, hardware, settings, tensor_parallel=degree)
    return made, settings.region
