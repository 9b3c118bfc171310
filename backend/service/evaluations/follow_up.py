"""The evaluation of an optimize job's result, submitted with the job; it starts when the job has succeeded."""

from __future__ import annotations

from functools import partial

from backend.domain.errors import ImpossibleStack
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.jobs.jobs import EvaluateSpec, OptimizeSpec
from backend.service.evaluations import evaluations
from backend.service.jobs.jobs import FollowUpJob
from backend.service.models import variants
from backend.service.workspace import Workspace

FIRST_JOB = "the job before it"
"""Placeholder for that job's id until it has one."""


def prepare(workspace: Workspace, first: OptimizeSpec, chosen: EvaluateOptions | None = None) -> EvaluateSpec:
    """Return the specification that compares the original with the result of `first`. Raises as an evaluation of the
    original, and ImpossibleStack if this machine cannot serve the result."""
    # 1. Refuse results that cannot be served here.
    model = first.model
    if first.neuron is not None:
        why = variants.why_unserved_on_neuron(workspace, first.neuron.fields)
    else:
        why = variants.why_recipe_unserved(workspace, model, first.recipe)
    if why:
        raise ImpossibleStack(f"What this makes cannot be served here, so it cannot be evaluated: {why}.")
    # 2. Prepare the evaluation of the original.
    baseline = variants.resolve(workspace, model.id if model.origin == "starter" else model.path)
    spec = evaluations.freeze(
        workspace, evaluations.make_spec(workspace, [baseline], chosen or evaluations.read_options())
    )
    # 3. Add the future artifact as a second variant.
    named = Variant(
        name=first.recipe.name,
        source=FIRST_JOB,
        kind="artifact",
        original_path=model.path,
        serving=first.recipe.serving.on_engine(first.recipe.serving.engine_name),
        recipe_hash=first.recipe.hash,
    )
    both = variants.distinct_names([*spec.variants, named])
    return spec.model_copy(update={"variants": tuple(both)})


def name_job(spec: EvaluateSpec, job_id: str) -> EvaluateSpec:
    """Replace the placeholder by the id of the job that makes the variant."""
    named = (
        variant.model_copy(update={"source": job_id}) if variant.source == FIRST_JOB else variant
        for variant in spec.variants
    )
    return spec.model_copy(update={"variants": tuple(named)})


def make_follower(spec: EvaluateSpec) -> FollowUpJob:
    """Return the follow-up job that is submitted together with the job before it."""
    return partial(name_job, spec), evaluations.title(spec)
