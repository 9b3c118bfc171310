"""The payoff maps that were measured and are kept: each is the result of its job, found again by what it holds for."""

from __future__ import annotations

from pydantic import ValidationError

from backend.domain.jobs.jobs import JobKind, JobState, PayoffSpec
from backend.domain.model.facts import ModelCard
from backend.domain.planner import payoff
from backend.domain.planner.payoff import MapKey, PayoffMap
from backend.domain.recipe.recipe import Recipe
from backend.hardware import engines, probe
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.history import JobFilter

SEARCHED = 40
"""Of the newest maps: each is some kilobytes."""


def of(job: JobView) -> PayoffMap | None:
    """The map that a job has measured; None where it has none that this version reads."""
    try:
        return PayoffMap.model_validate(job.result["map"]) if "map" in job.result else None
    except ValidationError:
        return None


def find(workspace: Workspace, model: ModelCard, recipe: Recipe) -> PayoffMap | None:
    """The newest map of this model with these weights under these settings, by this vLLM on this machine; None without one."""
    wanted = payoff.key(
        model.revision, payoff.weights_of(recipe), recipe.serving, engines.versions(workspace.settings), probe.probe()
    )
    return kept(workspace, wanted)


def for_spec(workspace: Workspace, spec: PayoffSpec) -> PayoffMap | None:
    """The newest map that such a job would measure again."""
    serving, versions = spec.variants[0].serving, engines.versions(workspace.settings)
    found = kept(workspace, payoff.key(spec.revision, spec.weights, serving, versions, probe.probe()))
    return found if found and set(spec.streams) <= set(found.streams) else None


def kept(workspace: Workspace, wanted: MapKey) -> PayoffMap | None:
    """The newest of that key."""
    with workspace.store.read() as session:
        chosen = JobFilter((JobState.SUCCEEDED,), (JobKind.PAYOFF,))
        rows = history.jobs(session, chosen, limit=SEARCHED)
        found = (of(jobs.view(row)) for row in rows)
        return next((each for each in found if each and each.key == wanted), None)
