"""Model cards for the rules."""

from __future__ import annotations

from typing import Any

from backend.domain.model.facts import ModelCard


def card(**changes: Any) -> ModelCard:
    fields: dict[str, Any] = {
        "id": "m",
        "path": "m",
        "origin": "folder",
        "revision": "r",
        "architecture": "LlamaForCausalLM",
        "model_type": "llama",
        "layers": 3,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "heads": 8,
        "kv_heads": 2,
        "head_dim": 64,
        "vocabulary": 4096,
        "max_positions": 2048,
        "dtype": "bfloat16",
        "tied_embeddings": True,
        "parameters": 11_000_000,
        "weights_bytes": 22_000_000,
        "tokenizer_hash": "t",
    }
    return ModelCard(**{**fields, **changes})
