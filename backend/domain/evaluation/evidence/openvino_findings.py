"""Findings on a variant that OpenVINO GenAI serves, from what Whetstone's server over it says at /v1/models. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from backend.domain.evaluation.evidence.schema import Aspect, Finding
from backend.domain.evaluation.evidence.served_variant import OpenVinoFacts, ServedVariant

SERVER = "the OpenVINO server"


def parse_facts(models: Mapping[str, Any]) -> OpenVinoFacts:
    """Return what the answer of /v1/models says; None for what it leaves out."""
    rows = models.get("data")
    first = rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}
    stated = first.get("meta")
    meta: Mapping[str, Any] = stated if isinstance(stated, dict) else {}
    context = first.get("max_model_len")
    named = {name: meta.get(name) for name in OpenVinoFacts._fields if name != "context"}
    return OpenVinoFacts(**named, context=context)


def openvino_findings(case: ServedVariant) -> Iterator[Finding]:
    """Yield a finding for each setting of the variant."""
    facts, serving = case.evidence.openvino or OpenVinoFacts(), case.variant.serving
    yield _compare("quantization", "file of bytes", case.variant.bytes_on_disk, facts.file_bytes)
    if serving.max_model_len is not None:
        yield _compare("context", "context of tokens", serving.max_model_len, facts.context)
    if serving.max_num_seqs is not None:
        yield _compare("streams", "sequences at once", serving.max_num_seqs, facts.slots)
    if serving.kv_cache_dtype != "auto":
        yield _compare("kv_cache", "cache type, by its size", serving.kv_cache_dtype, facts.cache_type)
    if serving.prefix_caching is not None:
        yield _compare("prefix_cache", "prefix cache", serving.prefix_caching, facts.prefix_caching)
    if serving.max_num_batched_tokens is not None:
        yield _compare("batch_tokens", "tokens of a step", serving.max_num_batched_tokens, facts.step_tokens)
    if serving.cache_eviction_tokens is not None:
        yield _compare("cache_blocks", "tokens kept of a request", serving.cache_eviction_tokens, facts.eviction_tokens)
    if serving.sparse_attention is not None:
        yield _compare("attention", "sparse attention", serving.sparse_attention, facts.sparse_attention)
    if case.variant.speculation is not None:
        yield _compare("speculation", "prompt lookup", True, facts.prompt_lookup)


def _compare(what: Aspect, label: str, requested: Any, reported: Any) -> Finding:
    if requested is None or reported is None:
        return Finding(what=what, proven=None, words=f"{SERVER[0].upper()}{SERVER[1:]} does not say its {label}.")
    words = f"{SERVER[0].upper()}{SERVER[1:]} says {label}: {_shown(reported)}; requested was {_shown(requested)}."
    cause = "" if reported == requested else "The setting did not reach the engine."
    return Finding(what=what, proven=reported == requested, words=words, cause=cause)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)
