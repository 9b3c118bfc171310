"""Models in rows and words: card facts with units, technique cells as checked here. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from app.words import count, size
from backend.domain.model import ModelCard
from backend.service.techniques import TechniqueCheck

WORKS, REFUSED = "✓ works", "✗ no"


def figures(card: ModelCard) -> list[tuple[str, str, str | None]]:
    """(label, value, how it is known)."""
    per_token = card.kv_bytes_per_token
    formula = f"2 x {card.layers} layers x {card.kv_heads} KV heads x {card.head_dim} x 2 bytes, keys and values in 16 bit"
    return [
        ("Parameters", count(card.parameters), f"{card.parameters:,}, counted from the safetensors headers"),
        ("Weights on disk", size(card.weights_bytes), f"{card.weights_bytes:,} bytes"),
        ("KV cache a token", size(per_token), formula),
        ("KV cache, full context", size(per_token * card.max_positions), f"{card.max_positions:,} tokens of one request"),
    ]


def facts(card: ModelCard) -> list[dict[str, str]]:
    """Everything else of the card, as config.json says it."""
    said = {
        "Architecture": card.architecture,
        "Layers": str(card.layers),
        "Hidden size": str(card.hidden_size),
        "Intermediate size": str(card.intermediate_size),
        "Attention heads": f"{card.heads}, of {card.head_dim}",
        "KV heads": str(card.kv_heads),
        "Vocabulary": f"{card.vocabulary:,}",
        "Context": f"{card.max_positions:,} tokens",
        "Weights are": card.dtype + (f", quantized ({card.quantization})" if card.quantization else ""),
        "Embeddings": "tied" if card.tied_embeddings else "not tied",
        "Provided draft": card.draft or "none",
        "Folder": card.path,
        "Revision": card.revision[:12],
    }
    return [{"Fact": name, "Value": value} for name, value in said.items()]


def technique_rows(checks: Iterable[TechniqueCheck]) -> list[dict[str, str]]:
    return [
        {
            "Technique": check.title,
            "Here": WORKS if check.works else REFUSED,
            "Why not": " ".join(check.reasons),
            "Nearest that works": check.nearest or "",
            "Source": "; ".join(check.sources),
        }
        for check in checks
    ]
