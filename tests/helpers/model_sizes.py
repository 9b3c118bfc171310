"""Model cards of known sizes."""

from __future__ import annotations

from typing import Any

from backend.catalog.bundled import published
from backend.domain.model.facts import ModelFacts, PublishedModel
from backend.domain.recipe.recipe import Recipe


def model(name: str) -> PublishedModel:
    match = published.find(name)
    assert match is not None
    return match


LLAMA_70B = model("meta-textgeneration-llama-3-70b")
STARTER: dict[str, Any] = {"layers": 3, "hidden_size": 512, "intermediate_size": 1536, "parameters": 11_145_728}
SHAPE: dict[str, Any] = {"heads": 8, "kv_heads": 2, "head_dim": 64, "vocabulary": 4096, "tied_embeddings": True}


def quantizing(**options: Any) -> Recipe:
    return Recipe.model_validate({"steps": [{"technique": "quantize", **options}]})


def facts(**changes: Any) -> ModelFacts:
    return LLAMA_70B.model_copy(update={**STARTER, **SHAPE, "model_type": "llama", "stored_head": None, **changes})


SMOLLM2 = facts(
    layers=30, hidden_size=576, intermediate_size=1536, parameters=134_515_008, heads=9, kv_heads=3, vocabulary=49152
)
