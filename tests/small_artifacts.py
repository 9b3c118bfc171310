"""An artifact of a few bytes, published into a job's channel as an optimize job does. Imports nothing of the studio's
store."""

from __future__ import annotations

from backend.artifacts import artifact_folder
from backend.channel import JobChannel
from backend.domain.jobs.artifact import Manifest
from backend.domain.model.facts import ModelCard
from backend.domain.recipe.recipe import Recipe

RECIPE = Recipe.model_validate({"name": "w8a8", "steps": [{"quantize": {"method": "w8a8"}}]})
CARD = ModelCard(
    id="m",
    origin="folder",
    architecture="LlamaForCausalLM",
    model_type="llama",
    parameters=1,
    layers=1,
    hidden_size=1,
    intermediate_size=1,
    heads=1,
    kv_heads=1,
    head_dim=1,
    vocabulary=1,
    max_positions=1,
    tied_embeddings=False,
    dtype="bfloat16",
    path="/m",
    revision="0",
    weights_bytes=1,
    tokenizer_hash=None,
)


def publish(channel: JobChannel, weights: str) -> Manifest:
    """Put an artifact with these weights where the supervisor takes it from."""
    model = channel.output / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "weights").write_text(weights)
    manifest = Manifest(
        job=channel.job,
        parent=CARD,
        recipe=RECIPE,
        recipe_hash=RECIPE.hash,
        files=artifact_folder.describe(channel.output),
        bytes_before=1,
        bytes_after=1,
    )
    artifact_folder.write_manifest(channel.output, manifest)
    return manifest
