"""Rows and text about models: card facts with units, technique checks. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.formatting import cell, count, range_text, size
from backend.domain.figures import figure
from backend.domain.model.facts import NO_TOKENS, ModelCard, ModelFacts, PublishedModel
from backend.domain.needs import serving_memory
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.estimate_correction import geometric_middle
from backend.domain.planner.target_choice import TargetGoal, find_miss
from backend.domain.planner.token_work import flops_per_token
from backend.domain.recipe.recipe import ORIGINAL
from backend.present import load_words
from backend.service.models.technique_checks import TechniqueCheck

VS_LOWEST = "≈ Price vs lowest"
WORKS, REFUSED = "✓ works", "✗ no"


def model_figures(model: ModelFacts) -> list[tuple[str, str, str | None]]:
    """Return (label, value, source) of each figure."""
    per_token = model.kv_bytes_per_token
    figures = [("Parameters", count(model.parameters), f"{model.parameters:,}, {_source(model)}"), _weights(model)]
    if not model.generates:
        return [*figures, ("KV cache", "none", NO_TOKENS)]
    return [
        *figures,
        ("KV cache per token", size(per_token), cache_formula(model)),
        ("KV cache, full context", size(model.kv_bytes_of(model.max_positions)), cache_of_context(model)),
    ]


def _source(model: ModelFacts) -> str:
    """Return where the parameters are counted."""
    if not isinstance(model, ModelCard):
        return "computed from its published shapes"
    head = "head of the GGUF file" if model.is_gguf_file else "safetensors headers"
    return f"counted from the {head}"


def quantized_sentence(model: ModelFacts) -> str:
    """Return how quantized weights are stored, and whether they can be optimized."""
    stored = model.stored if isinstance(model, ModelCard) else None
    return stored.sentence if stored else f"These weights are quantized already ({model.quantization})."


def cache_formula(model: ModelFacts) -> str:
    """Return the formula of the KV cache of one token."""
    if model.kv_latent:
        return f"{model.cached_layers} layers x {model.kv_latent} x 2 bytes, one latent vector per token in 16 bit"
    heads = f"{model.kv_heads} KV heads x {model.head_dim}"
    return f"2 x {model.cached_layers} layers x {heads} x 2 bytes, keys and values in 16 bit"


def cache_of_context(model: ModelFacts) -> str:
    """Return the basis of the KV cache of one request over the whole context."""
    window = (
        f"; {model.sliding_layers} layers store at most {model.sliding_window:,} of them"
        if model.sliding_window
        else ""
    )
    return f"{model.max_positions:,} tokens of one request{window}"


def _weights(model: ModelFacts) -> tuple[str, str, str | None]:
    if isinstance(model, ModelCard) and model.is_gguf_file:
        return "Weights after import", size(model.weights_bytes), f"{model.weights_bytes:,} bytes, in 16 bits"
    if isinstance(model, ModelCard):
        return "Weights on disk", size(model.weights_bytes), f"{model.weights_bytes:,} bytes"
    estimated = serving_memory.weights(model, ORIGINAL).total
    return "Weights", size(estimated), f"estimated: parameters x {model.quantization or model.dtype}"


def fact_rows(model: ModelFacts) -> list[dict[str, str]]:
    """Return the other facts of the card, from config.json or as published."""
    # Facts of every model, then where this one comes from.
    facts = {
        "Architecture": model.architecture,
        "Layers": str(model.layers),
        "Hidden size": str(model.hidden_size),
        "Intermediate size": str(model.intermediate_size),
        "Attention heads": f"{model.heads}, of {model.head_dim}",
        "KV heads": str(model.kv_heads),
        "Vocabulary": f"{model.vocabulary:,}",
        "Context": f"{model.max_positions:,} tokens",
        "Work per token": _work(model),
        "Experts": f"{model.experts} per layer, {model.experts_per_token} per token" if model.experts else "none",
        "Weights are": model.dtype + (f", quantized ({model.quantization})" if model.quantization else ""),
        "Embeddings": "tied" if model.tied_embeddings else "not tied",
        "Provided draft": model.draft or "none",
        **_origin_facts(model),
    }
    # Notes of the card come last.
    notes = [("Note", note) for note in model.notes] if isinstance(model, ModelCard) else []
    return [{"Fact": name, "Value": value} for name, value in [*facts.items(), *notes]]


def _work(model: ModelFacts) -> str:
    flops = flops_per_token(model)
    return "no tokens" if flops is None else f"{figure(flops / 1e9)} GFLOPs, 2 x parameters that a token meets"


def _origin_facts(model: ModelFacts) -> dict[str, str]:
    if isinstance(model, ModelCard):
        return {"Folder": model.path, "Revision": model.revision[:12]}
    if not isinstance(model, PublishedModel):
        return {}
    facts = {"Hub id": model.hf_repo, "Provider": model.provider, "Licence": model.license, "Task": model.task}
    return facts | {"Facts from": ", ".join(model.sources)} | ({"Note": model.note} if model.note else {})


def technique_rows(checks: Iterable[TechniqueCheck]) -> list[dict[str, str]]:
    return [
        {
            "Technique": check.title_with_options,
            "Here": WORKS if check.works else REFUSED,
            "Why not": cell(" ".join(check.reasons)),
            "Closest alternative": cell(check.nearest or ""),
            "Source": cell("; ".join(check.sources)),
        }
        for check in checks
    ]


def instance_rows(estimates: Iterable[Estimate], goal: TargetGoal) -> list[dict[str, Any]]:
    """Return instances with their price and speed, estimated, in the order given; the price also as a multiple of the
    lowest, by the middles of the ranges."""
    estimates, limited = list(estimates), bool(goal.latency_limits)
    middles = [
        None if estimate.price_per_million_output is None else geometric_middle(estimate.price_per_million_output)
        for estimate in estimates
    ]
    lowest = min((middle for middle in middles if middle), default=None)
    rows = []
    for estimate, middle in zip(estimates, middles, strict=True):
        meets = {"Your limits": "✗" if find_miss(estimate, goal) else "✓"} if limited else {}
        rows.append(
            {
                "Instance": load_words.instances(estimate.target, estimate),
                "≈ USD per million": range_text(estimate.price_per_million_output),
                VS_LOWEST: None if middle is None or lowest is None else middle / lowest,
                "≈ First token (ms)": range_text(estimate.ttft_ms),
                "≈ Per output token (ms)": range_text(estimate.tpot_ms),
                "USD/h": figure(estimate.price_of_all_per_hour),
                **meets,
            }
        )
    return rows
