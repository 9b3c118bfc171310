"""Runs a train job: trains a draft on the model's own answers; the artifact has the draft and its card."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from backend import files
from backend.artifacts import artifact_folder
from backend.catalog.text import training_prompts
from backend.channel import JobChannel
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.jobs import TrainSpec
from backend.domain.recipe.draft_training import METHODS
from backend.domain.recipe.recipe import Recipe, Speculate
from backend.hardware import probe
from backend.present.words import drafts
from backend.worker.optimizing import recovery
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory

RESULT = {"seconds", "peak_rss_bytes", "bytes_after", "training"}
"""Fields of the manifest that are also in the job's result."""


def run(spec: TrainSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Train the draft, fill the channel's output with the artifact, and return this kind's part of the result.

    The target's answers and the state of the training stay for the next attempt until one has succeeded.

    Raises InvalidWorkload, and what `engines.drafts.train` does.
    """
    from backend.engines.drafts.train import TrainRequest, train
    from backend.engines.native import devices

    # 1. Read the prompts.
    began, progress = time.monotonic(), ChannelProgress(channel, 1.0)
    target = Path(spec.model.path)
    prompts_read = training_prompts.read(spec.prompts_path, target)
    if prompts_read.left_out:
        progress.note(
            f"{prompts_read.left_out} prompts of {prompts_read.name} are left out: held out for evaluations, or there "
            "twice."
        )

    # 2. Train; what is stored between attempts goes when the artifact is complete.
    draft = channel.output / "draft"
    draft.mkdir(parents=True)
    with recovery.removing_stages(channel.resume()):
        request = TrainRequest(
            target_dir=target,
            out_dir=draft,
            options=spec.options,
            prompts=prompts_read.texts,
            device=devices()[0],
            work_dir=channel.resume(),
        )
        trained = train(request, progress, training_prompts.is_held_out).model_dump(mode="json")
        options = spec.options.model_dump(mode="json", exclude_none=True)
        training = {**trained, "asked": options, "prompts": prompts_read.name, "left_out": prompts_read.left_out}
        manifest = _manifest(spec, channel, training, memory, time.monotonic() - began)
    return {**manifest.model_dump(mode="json", include=RESULT), "artifact": manifest.id}


def _manifest(
    spec: TrainSpec, channel: JobChannel, training: dict[str, Any], memory: PeakMemory, seconds: float
) -> Manifest:
    """Write the draft's card and the manifest, and return the manifest."""
    # 1. The card, and the recipe that serves the draft.
    draft, hardware = channel.output / "draft", probe.probe()
    files.write(draft / "README.md", drafts.card(spec.model.id, training, hardware))
    recipe = Recipe(
        name=drafts.title(spec.options),
        steps=(Speculate(method=METHODS[spec.options.kind], tokens=spec.options.tokens),),
    )

    # 2. The manifest, over all files.
    manifest = Manifest(
        job=channel.job,
        parent=spec.model,
        recipe=recipe,
        recipe_hash=recipe.hash,
        files=artifact_folder.describe(channel.output),
        bytes_before=spec.model.weights_bytes,
        bytes_after=sum(file.stat().st_size for file in draft.glob("*.safetensors")),
        training=training,
        versions=training["versions"],
        hardware=hardware,
        seed=spec.options.seed,
        peak_rss_bytes=memory.peak,
        seconds=round(seconds, 2),
    )
    artifact_folder.write_manifest(channel.output, manifest)
    return manifest
