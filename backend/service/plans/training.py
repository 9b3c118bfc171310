"""From what a person asks to a queued train job: every reason against it before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.catalog.text import training_prompts
from backend.domain.errors import ImpossibleStack, InvalidOptions, InvalidWorkload, NotEnoughDisk, NotEnoughMemory
from backend.domain.jobs.jobs import TrainSpec
from backend.domain.jobs.terms import Terms
from backend.domain.model.facts import ModelCard
from backend.domain.needs import draft_training_needs as needs
from backend.domain.recipe.draft_training import Training
from backend.domain.recipe.recipe import Recipe, read
from backend.domain.roles import Action
from backend.hardware import probe
from backend.present.source_names import short_name
from backend.present.words import drafts
from backend.service import paths
from backend.service.jobs import artifact_storage, artifacts, jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models, preflight
from backend.service.workspace import Workspace

LEAST_MINUTES = 1.0
"""Below it not even the answers come: the model is loaded, and three rounds of them are asked for."""


def prepare(workspace: Workspace, source: str, options: Training, prompts_path: str | None = None) -> TrainSpec:
    """Check everything that can be checked without starting.

    Raises UnknownModel, InvalidModel, ImpossibleStack for a target that no draft can be trained for, InvalidWorkload
    for prompts that will not do, InvalidOptions, NotEnoughMemory, NotEnoughDisk, QuotaExceeded; ReadOnly in a
    demonstration.
    """
    workspace.check(Action.SUBMIT)
    # 1. The model and the options.
    model = _resolve_target(workspace, source)
    _check_options(model, options)
    # 2. The prompts.
    path = None if prompts_path is None else paths.find_file(prompts_path)
    if prompts_path is not None and path is None:
        raise InvalidWorkload(f"There is no file {prompts_path[:200]}: give a JSONL, Parquet or text file of prompts.")
    training_prompts.read(str(path) if path else None, Path(model.path))
    # 3. Memory and disk.
    _check_room(workspace, model, options)
    return TrainSpec(model=model, options=options, prompts_path=str(path) if path else None)


def submit(
    workspace: Workspace, spec: TrainSpec, *, submission: str | None = None, terms: Terms | None = None
) -> JobView:
    """Queue it."""
    return jobs.submit(workspace, spec, title(spec.model, spec.options), submission=submission, terms=terms)


def draft_recipe(artifact_id: str, trained: Mapping[str, Any]) -> Recipe:
    """The recipe that does nothing but use a draft. `trained`: what the manifest says of its training."""
    return read({"name": f"draft {artifact_id}", "steps": [drafts.step(trained, artifact_id)]})


def title(model: ModelCard, options: Training) -> str:
    return f"Train a draft for {short_name(model.id)}: {drafts.title(options)}"


def _resolve_target(workspace: Workspace, source: str) -> ModelCard:
    # 1. Name the original of an artifact.
    if models.is_artifact(source):
        manifest = artifacts.show(workspace, source).manifest
        what = "is a draft itself"
        if not manifest.is_draft:
            speculates = manifest.recipe.step("speculate")
            what = "already speculates" if speculates else "is made of another model"
        raise ImpossibleStack(
            f"{source} {what}: train for {manifest.parent.id}, the model that it was made from; the draft then serves "
            "what is quantized of it too."
        )
    # 2. Refuse models that no draft can be trained for.
    model = models.resolve(workspace, source)
    result = preflight.check(workspace.settings.cache, model)
    if why := result.unbuilt or result.unrewritable:
        raise ImpossibleStack(f"No draft can be trained for {model.id}. {why}")
    if model.quantization:
        raise ImpossibleStack(
            f"{model.id} is quantized ({model.quantization}), and drafts are trained on 16-bit weights: give its "
            "16-bit original; the draft then serves the quantized one too."
        )
    if not model.generates:
        raise ImpossibleStack(
            f"{model.id} generates no tokens, so nothing can be drafted for it: give a language model."
        )
    return model


def _check_options(model: ModelCard, options: Training) -> None:
    if options.steps is None and options.minutes < LEAST_MINUTES:
        raise InvalidOptions(
            f"is too small: {options.minutes:g} minutes end before a first checkpoint, since the model answers "
            f"prompts first: give {LEAST_MINUTES:g} or more.",
            field="minutes",
        )
    if options.kind != "small":
        for name in ("layers", "hidden"):
            if getattr(options, name) is not None:
                raise InvalidOptions(f"goes with a small model, not with {options.kind}: leave it out.", field=name)
        if options.on_policy:
            raise InvalidOptions("goes with a small model, which answers by itself: leave it out.", field="on_policy")
    elif options.start == "pruned":
        if options.hidden is not None:
            raise InvalidOptions("goes with `start: fresh`: a pruned draft is as wide as its model.", field="hidden")
        if options.layers is not None and options.layers >= model.layers:
            raise InvalidOptions(
                f"is too large: a draft of {options.layers} layers is no smaller than {model.id}, which has "
                f"{model.layers}: give {max(1, model.layers // 8)}.",
                field="layers",
            )
    elif needs.parameters(model, options) >= model.parameters:
        raise InvalidOptions(
            f"is too large: such a draft has about {needs.parameters(model, options) / 1e6:.1f} M parameters and "
            f"{model.id} {model.parameters / 1e6:.1f} M: give {_narrower_width(model, options)}.",
            field="hidden",
        )


def _narrower_width(model: ModelCard, options: Training) -> int:
    """The widest multiple of 32 that gives a quarter of the model's parameters, at least 32."""
    widths = range(32, model.hidden_size + 1, 32)
    fit = [
        w
        for w in widths
        if 4 * needs.parameters(model, options.model_copy(update={"hidden": w, "layers": 1})) <= model.parameters
    ]
    return max(fit, default=32)


def _check_room(workspace: Workspace, model: ModelCard, options: Training) -> None:
    memory, disk = needs.memory_bytes(model, options), needs.disk_bytes(model, options)
    if memory > probe.total_memory():
        raise NotEnoughMemory(
            f"This training needs about {memory / 1e9:.1f} GB of memory and {probe.total_memory() / 1e9:.1f} GB are "
            "here: train a narrower draft, or for a smaller model."
        )
    free = probe.free_disk(workspace.settings.home)
    if free < disk:
        raise NotEnoughDisk(
            f"This training needs {disk / 1e9:.2f} GB of disk and {free / 1e9:.2f} GB are free: free some."
        )
    artifact_storage.check_quota(workspace, 2 * needs.parameters(model, options))
