"""The payoff maps that were measured and are kept: each is the result of its job, found again by what it holds for."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ValidationError

from backend.domain.errors import WhetstoneError
from backend.domain.jobs.jobs import JobKind, JobState, PayoffSpec
from backend.domain.model.facts import ModelCard, ModelFacts
from backend.domain.planner import draft_payoff
from backend.domain.planner.draft_payoff import DraftShape, MapKey, PayoffMap
from backend.domain.recipe.recipe import Recipe, Speculate
from backend.hardware import engine_status, probe
from backend.service.jobs import artifacts, jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.history import JobFilter

SEARCHED = 40
"""Newest maps that are searched; each has some kilobytes."""


def map_of_job(job: JobView) -> PayoffMap | None:
    """The map that a job has measured; None where it has none that this version reads."""
    try:
        return PayoffMap.model_validate(job.result["map"]) if "map" in job.result else None
    except ValidationError:
        return None


def find_map(workspace: Workspace, model: ModelCard, recipe: Recipe) -> PayoffMap | None:
    """The newest map of this model with these weights under these settings, by this vLLM on this machine; None without
    one."""
    map_key = draft_payoff.map_key(
        model.revision,
        draft_payoff.weights_hash(recipe),
        recipe.serving,
        engine_status.list_versions(workspace.settings),
        probe.probe(),
    )
    return find_by_key(workspace, map_key)


class TrainedDraft(NamedTuple):
    """A draft that `train` made. `lengths`: its mean tokens a step at 1, 2, ... proposed, measured as it was
    trained."""

    shape: DraftShape
    lengths: tuple[float, ...]


def find_trained_draft(workspace: Workspace, model: ModelFacts, recipe: Recipe) -> TrainedDraft | None:
    """The recipe's draft; None of one that was not trained here for that model, or is gone."""
    step = recipe.step("speculate")
    if not isinstance(step, Speculate) or not step.draft or not models.is_artifact(step.draft):
        return None
    try:
        lengths = artifacts.show(workspace, step.draft).manifest.lengths
        draft = models.find_draft(workspace, model, recipe)
    except WhetstoneError:  # what is said of the recipe says it
        return None
    return (
        TrainedDraft(DraftShape(parameters=draft.parameters, layers=draft.layers), lengths)
        if draft and lengths
        else None
    )


def with_best_tokens(workspace: Workspace, model: ModelCard, recipe: Recipe) -> Recipe:
    """With as many tokens a guess as its trained draft gains most with for one user; as it is where no map tells."""
    payoff_map, draft = find_map(workspace, model, recipe), find_trained_draft(workspace, model, recipe)
    if payoff_map is None or draft is None:
        return recipe
    tokens, _ = payoff_map.best_known(1, draft.shape, draft.lengths)
    steps = (
        step.model_copy(update={"tokens": tokens}) if isinstance(step, Speculate) else step for step in recipe.steps
    )
    return recipe.model_copy(update={"steps": tuple(steps)})


def find_for_spec(workspace: Workspace, spec: PayoffSpec) -> PayoffMap | None:
    """The newest map that such a job would measure again."""
    serving, versions = spec.variants[0].serving, engine_status.list_versions(workspace.settings)
    payoff_map = find_by_key(
        workspace, draft_payoff.map_key(spec.revision, spec.weights, serving, versions, probe.probe())
    )
    return payoff_map if payoff_map and set(spec.streams) <= set(payoff_map.streams) else None


def find_by_key(workspace: Workspace, map_key: MapKey) -> PayoffMap | None:
    """The newest of that key."""
    with workspace.store.read() as session:
        chosen = JobFilter((JobState.SUCCEEDED,), (JobKind.PAYOFF,))
        rows = history.list_jobs(session, chosen, limit=SEARCHED)
        maps = (map_of_job(jobs.view(row)) for row in rows)
        return next((payoff_map for payoff_map in maps if payoff_map and payoff_map.key == map_key), None)
