"""Findings on a server's cache: the precision of keys and values, and the reuse of prefixes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from backend.domain.evaluation.evidence.schema import Finding
from backend.domain.evaluation.evidence.served_variant import ServedVariant

REPEATED = 0.1
"""Repeated share of a workload below which a cache without a single hit proves nothing."""
PADDED = 1.5
"""A cache is made of whole blocks and pages; twice the bytes is another precision."""


def cache_findings(case: ServedVariant) -> Iterator[Finding]:
    yield _precision(case)
    yield _prefixes(case)


def _fp8(case: ServedVariant) -> str | None:
    """Return what requested fp8, the recipe or the checkpoint; None where neither did."""
    if case.variant.serving.kv_cache_dtype == "fp8":
        return "the recipe"
    return "the checkpoint" if (case.config.get("quantization_config") or {}).get("kv_cache_scheme") else None


def _precision(case: ServedVariant) -> Finding:
    source, stated = _fp8(case), case.evidence.cache.get("cache_dtype") or case.setting("kv_cache_dtype")
    if stated is None:
        return Finding(
            what="kv_cache", proven=None, words="How keys and values are kept cannot be seen: the server does not say."
        )
    is_fp8 = stated.startswith("fp8")
    if is_fp8 != (source is not None) and not (source == "the checkpoint" and stated == "auto"):
        request = f"{source} asks for fp8" if source else "16 bits were requested"
        words = f"The server says cache_dtype={stated}, where {request}."
        cause = case.cause(
            "kv cache", "cache_dtype", default="The requested precision of the cache did not reach the server."
        )
        return Finding(what="kv_cache", proven=False, words=words, cause=cause)
    return _measured(case, f"The server says cache_dtype={stated}", 1.0 if source else None)


def _measured(case: ServedVariant, statement: str, width: float | None) -> Finding:
    """Compare the memory per token with the stated precision: a name alone is no proof. `width`: requested bytes per
    element, None for 16 bits or more."""
    took = _element_bytes(case)
    if took is None:
        return Finding(what="kv_cache", proven=True, words=f"{statement}.")
    words = f"{statement}; its memory over its tokens is {took:.2g} bytes an element"
    if width is not None and took > PADDED * width:
        cause = "The cache was made in 16 bits, whatever the flag says."
        return Finding(what="kv_cache", proven=False, words=f"{words}, where 1 was requested.", cause=cause)
    return Finding(what="kv_cache", proven=True, words=f"{words}.")


def _element_bytes(case: ServedVariant) -> float | None:
    """None where the log does not tell both, where a draft shares the cache, or where not every layer keeps all
    tokens."""
    memory, tokens = case.evidence.log.arguments.get("kv_cache_memory_bytes"), case.evidence.log.cache_tokens
    elements = _elements(dict(case.config))
    drafts = case.variant.speculation is not None and case.variant.speculation.draft_path is not None
    if not memory or not tokens or not elements or drafts or case.variant.serving.tensor_parallel > 1:
        return None
    return int(memory) / tokens / elements


def _elements(config: dict[str, Any]) -> int | None:
    """Return the number of elements of a token's keys and values over all layers, None where it is not known."""
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    if (
        not layers
        or not heads
        or config.get("sliding_window")
        or config.get("layer_types")
        or config.get("kv_lora_rank")
    ):
        return None
    size = config.get("head_dim") or (config.get("hidden_size") or 0) // heads
    return 2 * layers * (config.get("num_key_value_heads") or heads) * size or None


def _prefixes(case: ServedVariant) -> Finding:
    # 1. The setting that the server states.
    requested, stated = case.variant.serving.prefix_caching, case.setting("enable_prefix_caching")
    stated = case.evidence.cache.get("enable_prefix_caching") or stated
    if stated is None:
        # 2. That setting against the requested one.
        words = "Whether prefixes are kept cannot be seen: the server does not say."
        return Finding(what="prefix_cache", proven=None, words=words)
    words = f"The server says enable_prefix_caching={stated}"
    if requested is None:
        return Finding(what="prefix_cache", proven=True, words=f"{words}, vLLM's own choice{_hits(case)}.")
    if (stated == "True") != requested:
        cause = case.cause("prefix", default="vLLM turns it off for models and runners that cannot keep prefixes.")
        words = f"{words}, where {'on' if requested else 'off'} was requested."
        return Finding(
            what="prefix_cache", proven=False, words=words, cause=cause if requested else "The flag did not reach it."
        )
    return _cache_hits(case, words) if requested else Finding(what="prefix_cache", proven=True, words=f"{words}.")


def _cache_hits(case: ServedVariant, words: str) -> Finding:
    """Return the finding on cache hits: a workload that repeats beginnings of prompts must have some."""
    counted = [level for level in case.levels if level.prefix_cache_hit_rate is not None]
    repeated = [level for level in counted if (level.prefix_cache_expected or 0.0) >= REPEATED]
    if repeated and not any(level.prefix_cache_hit_rate for level in repeated):
        most = max(level.prefix_cache_expected or 0.0 for level in repeated)
        words = f"{words}, but not one token of a prompt was found again, where the workload repeats up to {most:.0%}."
        cause = (
            "Requests that differ in cache_salt share nothing, and a cache too small for them forgets each before the "
            "next."
        )
        return Finding(what="prefix_cache", proven=False, words=words, cause=cause)
    return Finding(what="prefix_cache", proven=True, words=f"{words}{_hits(case)}.")


def _hits(case: ServedVariant) -> str:
    rates = [level.prefix_cache_hit_rate for level in case.levels if level.prefix_cache_hit_rate is not None]
    return f"; of the prompts' tokens up to {max(rates):.0%} were found again" if rates else ""
