"""Payoff maps: what speculation would cost and gain for a target, measured here before there is a draft."""

from __future__ import annotations

from backend.domain.errors import RequestError
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.jobs import PayoffSpec
from backend.domain.jobs.terms import Terms
from backend.domain.model.facts import ModelCard
from backend.domain.planner import draft_payoff
from backend.domain.recipe.recipe import ORIGINAL, Recipe, Serving
from backend.domain.roles import Action
from backend.hardware import engine_status
from backend.service.evaluations import workloads
from backend.service.jobs import artifacts, jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models, variants
from backend.service.workspace import Workspace

MOST_STREAMS = 256


def prepare(
    workspace: Workspace,
    source: str,
    streams: tuple[int, ...] = draft_payoff.STREAMS,
    rounds: int = draft_payoff.ROUNDS,
    *,
    serving: Serving | None = None,
) -> PayoffSpec:
    """Return the specification that measures a payoff map for a model id, folder or artifact. `serving` holds settings
    for vLLM; None uses its defaults.

    Raises RequestError for what cannot be a target and for streams that are none, UnknownModel, InvalidModel, NotFound,
    ImpossibleStack, EngineMissing, ReadOnly.
    """
    workspace.check(Action.SUBMIT)
    # 1. Check the streams.
    if not streams or not all(1 <= count <= MOST_STREAMS for count in streams):
        raise RequestError(
            f"Streams are whole numbers from 1 to {MOST_STREAMS}, such as 1,4,8: give {{}} so.", "streams"
        )
    # 2. Resolve the target, which must be served here.
    target = variants.resolve(workspace, source, serving=serving)
    card, recipe = require_original(workspace, target)
    variants.check_served(workspace, [target])
    engine_status.server_program(workspace.settings, target)
    return PayoffSpec(
        variants=(target,),
        probes=draft_payoff.make_probes(card),
        streams=tuple(sorted(set(streams))),
        rounds=rounds,
        prompts=str(workloads.find_file(workloads.CODE)),
        revision=card.revision,
        weights=draft_payoff.weights_hash(recipe),
    )


def require_original(workspace: Workspace, target: Variant) -> tuple[ModelCard, Recipe]:
    """Return the original and the recipe applied to it. Raises RequestError if no draft can be used with it."""
    # Refuse what a draft cannot be put before.
    if target.kind == "url":
        raise RequestError(
            f"{target.name} is served elsewhere, and drafts cannot be put before it: give a model or an artifact."
        )
    if target.serving.engine != "vllm":
        raise RequestError(
            f"{target.name} is served by {target.serving.engine}, which takes no drafts here: map what they pay for on "
            "vLLM."
        )
    if target.speculation is not None:
        raise RequestError(
            f"{target.name} speculates already: give the model, or an artifact without a speculate step."
        )
    if target.neuron is not None:
        raise RequestError(
            f"{target.name} was compiled for Neuron, for one draft or none: give the model it was made from."
        )
    # Find what the target was made from.
    if target.kind == "artifact":
        manifest = artifacts.show(workspace, target.source).manifest
        card, recipe = manifest.parent, manifest.recipe
    else:
        card, recipe = models.resolve(workspace, target.source), ORIGINAL
    if not card.generates:
        raise RequestError(
            f"{card.id} is an embedding model and generates no tokens, so there is nothing to guess ahead."
        )
    return card, recipe


def submit(
    workspace: Workspace, spec: PayoffSpec, *, submission: str | None = None, terms: Terms | None = None
) -> JobView:
    """Queue it. Raises as `jobs.submit` does."""
    return jobs.submit(workspace, spec, title(spec), submission=submission, terms=terms)


def title(spec: PayoffSpec) -> str:
    return f"Map what drafts pay for {spec.variants[0].name}"


def check_size(workspace: Workspace, spec: PayoffSpec, parameters: int) -> None:
    """Raises RequestError for a draft that is no smaller than the target, or smaller than its vocabulary allows."""
    card, _ = require_original(workspace, spec.variants[0])
    draft_payoff.check_size(card, parameters)
