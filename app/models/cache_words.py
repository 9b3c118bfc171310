"""How the size of a model's key-value cache comes about, in words, and the notes of its card. Pure."""

from __future__ import annotations

from backend.domain.model.facts import ModelCard, ModelFacts


def formula(model: ModelFacts) -> str:
    """The cache of one token."""
    if model.kv_latent:
        return f"{model.cached_layers} layers x {model.kv_latent} x 2 bytes, one latent vector a token in 16 bit"
    return f"2 x {model.cached_layers} layers x {model.kv_heads} KV heads x {model.head_dim} x 2 bytes, keys and values in 16 bit"


def of_context(model: ModelFacts) -> str:
    """The cache of one request over the whole context."""
    window = f"; {model.sliding_layers} layers keep {model.sliding_window:,} of them at most" if model.sliding_window else ""
    return f"{model.max_positions:,} tokens of one request{window}"


def notes(model: ModelFacts) -> list[dict[str, str]]:
    """A row each for the table of facts."""
    return [{"Fact": "Note", "Value": note} for note in model.notes] if isinstance(model, ModelCard) else []
