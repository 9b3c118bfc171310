"""What a job will need: disk and memory, as ranges with their formula. Pure arithmetic over the card and the recipe."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from backend.domain.model import ModelCard
from backend.domain.recipe import Quantize, Recipe

COMPILE_CACHE_BYTES = 200_000_000
"""What vLLM's compile cache of one model took here at most, rounded up."""
MARGIN_BYTES = 64_000_000


class Need(BaseModel):
    """Bytes. `disk_bytes` is what must be free before the job starts; formulas say how each came about."""

    model_config = ConfigDict(frozen=True)

    weights_bytes: int
    disk_bytes: int
    memory_bytes: int
    formulas: dict[str, str]


def optimized_weights(model: ModelCard, recipe: Recipe) -> int:
    """Bytes of the weights after the recipe: embeddings, norms and lm_head stay in 16 bit, linears take their new width."""
    step = recipe.step("quantize")
    if not isinstance(step, Quantize):
        return model.weights_bytes
    embeddings = model.vocabulary * model.hidden_size * (1 if model.tied_embeddings else 2)
    linears = max(model.parameters - embeddings, 0)
    bits = 8.0 if step.method in {"w8a8", "int8", "fp8"} else 4 + (16 + 4) / (step.group_size or 128)
    return int(embeddings * 2 + linears * bits / 8)


def need(model: ModelCard, recipe: Recipe, draft: ModelCard | None = None) -> Need:
    """What the optimize job needs on this machine."""
    weights = optimized_weights(model, recipe)
    disk = weights + MARGIN_BYTES + (draft.weights_bytes if draft else 0)
    if recipe.step("compile"):
        disk += COMPILE_CACHE_BYTES
    memory = 4 * model.parameters * 2 if recipe.step("quantize") else model.weights_bytes
    return Need(
        weights_bytes=weights,
        disk_bytes=disk,
        memory_bytes=memory,
        formulas={
            "weights": "16-bit embeddings and norms + linears x bits / 8 + a 16-bit scale and 4-bit zero a group",
            "disk": "optimized weights + draft + compile cache (200 MB) + 64 MB margin",
            "memory": "two fp32 copies of the weights while quantizing",
        },
    )
