"""Models in rows and words: card facts with units, technique cells as checked here. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from app import cache_words
from app.words import count, size
from backend.domain.model import ModelCard
from backend.service.models import KnownModel
from backend.service.techniques import TechniqueCheck

WORKS, REFUSED = "✓ works", "✗ no"
ORIGINS = {"starter": "comes with Whetstone", "folder": "folder", "imported": "imported", "artifact": "artifact"}


def row(known: KnownModel, checks: Sequence[TechniqueCheck]) -> dict[str, Any]:
    """One line of the catalog: facts, then a cell a technique."""
    card = known.card
    facts = {
        "Model": card.id,
        "Origin": ORIGINS.get(card.origin, card.origin) if known.present else "folder is gone",
        "Parameters": count(card.parameters),
        "Weights": size(card.weights_bytes),
        "KV a token": size(card.kv_bytes_per_token),
        "Context": card.max_positions,
    }
    return facts | {check.title: WORKS if check.works else REFUSED for check in checks}


def matches(known: KnownModel, words: str) -> bool:
    """All words stand in id, architecture, type or folder."""
    card = known.card
    said = " ".join((card.id, card.architecture, card.model_type, card.path)).casefold()
    return all(word in said for word in words.casefold().split())


class Checks:
    """The technique checks of models, made when they are asked for and once: a list checks the models it shows."""

    def __init__(self, check: Callable[[ModelCard], list[TechniqueCheck]]) -> None:
        self._check = check
        self._made: dict[tuple[str, str], list[TechniqueCheck]] = {}

    def of(self, card: ModelCard) -> list[TechniqueCheck]:
        key = (card.id, card.path)
        if key not in self._made:
            self._made[key] = self._check(card)
        return self._made[key]

    def work(self, card: ModelCard, wanted: Sequence[str]) -> bool:
        """Every wanted technique, by title, works on it."""
        return not wanted or {check.title for check in self.of(card) if check.works}.issuperset(wanted)


def figures(card: ModelCard) -> list[tuple[str, str, str | None]]:
    """(label, value, how it is known)."""
    per_token = card.kv_bytes_per_token
    return [
        ("Parameters", count(card.parameters), f"{card.parameters:,}, counted from the safetensors headers"),
        ("Weights on disk", size(card.weights_bytes), f"{card.weights_bytes:,} bytes"),
        ("KV cache a token", size(per_token), cache_words.formula(card)),
        ("KV cache, full context", size(card.kv_bytes_of(card.max_positions)), cache_words.of_context(card)),
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
    return [{"Fact": name, "Value": value} for name, value in said.items()] + cache_words.notes(card)


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
