"""Findings on a variant that llama.cpp serves, from what its server says at /v1/models and /props. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from backend.domain.evaluation.evidence.schema import Finding
from backend.domain.evaluation.evidence.served_variant import LlamaCppFacts, ServedVariant

SERVER = "llama.cpp's server"
HEAD_SHARE = 0.5
"""Share of a GGUF file that its head, a vocabulary, may take at most; the rest are weights."""


def parse_facts(models: Mapping[str, Any], properties: Mapping[str, Any]) -> LlamaCppFacts:
    """Return what the answers of both routes say; None for what they leave out."""
    rows = models.get("data")
    first = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
    stated = first.get("meta")
    meta: Mapping[str, Any] = stated if isinstance(stated, dict) else {}
    return LlamaCppFacts(
        weights=str(meta["ftype"]) if meta.get("ftype") else None,
        weight_bytes=_whole(meta.get("size")),
        context=_whole(meta.get("n_ctx")),
        slots=_whole(properties.get("total_slots")),
    )


def llama_cpp_findings(case: ServedVariant) -> Iterator[Finding]:
    """Yield a finding for each setting of the variant."""
    facts, serving = case.evidence.llama_cpp or LlamaCppFacts(), case.variant.serving
    yield _weights(case, facts)
    if serving.max_model_len is not None:
        yield _at_least("context", "context of at least", serving.max_model_len, facts.context, "tokens")
    if serving.max_num_seqs is not None:
        yield _at_least("streams", "slots for", serving.max_num_seqs, facts.slots, "sequences at once")
    if serving.kv_cache_dtype != "auto":
        words = f"A cache of {serving.kv_cache_dtype} was requested; {SERVER} does not say its type."
        yield Finding(what="kv_cache", proven=None, words=words)
    if serving.prefix_caching is False:
        yield _prefix_cache(case)


def _weights(case: ServedVariant, facts: LlamaCppFacts) -> Finding:
    """Return whether the size of the weights that it reports is that of the file."""
    file_bytes = case.variant.bytes_on_disk
    if facts.weight_bytes is None:
        return Finding(what="quantization", proven=None, words=f"{SERVER} did not say which weights it serves.")
    reported_words = f"{SERVER} says weights of type {facts.weights}, {facts.weight_bytes / 1e6:.1f} MB"
    if file_bytes is None:
        return Finding(what="quantization", proven=None, words=f"{reported_words}.")
    fits = HEAD_SHARE * file_bytes <= facts.weight_bytes <= file_bytes
    words = f"{reported_words}; the file has {file_bytes / 1e6:.1f} MB."
    cause = "" if fits else "Another file was served."
    return Finding(what="quantization", proven=fits, words=words, cause=cause)


def _at_least(what: Any, label: str, least: int, reported: int | None, unit: str) -> Finding:
    requested = f"{label[0].upper()}{label[1:]} {least} {unit} was requested"
    if reported is None:
        return Finding(what=what, proven=None, words=f"{requested}; {SERVER} does not say it.")
    cause = "" if reported >= least else "The setting did not reach the server."
    words = f"{requested}; {SERVER} says {reported}."
    return Finding(what=what, proven=reported >= least, words=words, cause=cause)


def _prefix_cache(case: ServedVariant) -> Finding:
    rates = [level.prefix_cache_hit_rate for level in case.levels if level.prefix_cache_hit_rate is not None]
    if not rates:
        words = f"No prefix cache was requested; {SERVER} reported no hits that could be counted."
        return Finding(what="prefix_cache", proven=None, words=words)
    words = f"No prefix cache was requested; its counters show a hit rate of at most {max(rates):.1%}."
    cause = "" if max(rates) == 0 else "The server kept prompts although its prompt cache was to be off."
    return Finding(what="prefix_cache", proven=max(rates) == 0, words=words, cause=cause)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
