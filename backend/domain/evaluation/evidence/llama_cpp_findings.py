"""Findings on a variant that llama.cpp serves, from what its server says of itself, and its log. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from backend.domain.evaluation import llama_cpp_speculation
from backend.domain.evaluation.evidence import speculation_findings
from backend.domain.evaluation.evidence.schema import Finding
from backend.domain.evaluation.evidence.served_variant import LOG, LlamaCppFacts, ServedVariant
from backend.domain.recipe.recipe import Serving

SERVER = "llama.cpp's server"
HEAD_SHARE = 0.5
"""Share of a GGUF file that its head, a vocabulary, may take at most; the rest are weights."""
_THREADS = re.compile(r"system_info: n_threads = (\d+)(?: \(n_threads_batch = (\d+)\))?")
_CACHE = re.compile(r"llama_kv_cache: size = .*K \((\w+)\):.*V \((\w+)\):")
_BATCH = re.compile(r"llama_context: n_batch\s*= (\d+)")
_MICRO_BATCH = re.compile(r"llama_context: n_ubatch\s*= (\d+)")
_FLASH = re.compile(r"llama_context: flash_attn\s*= (\w+)")
_SPECULATES = re.compile(r"adding speculative implementation '([\w-]+)'")
"""Lines of llama.cpp 0c1e57098: common/common.cpp, src/llama-kv-cache.cpp and common/speculative.cpp."""


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


def add_logged_facts(facts: LlamaCppFacts, lines: Iterable[str]) -> LlamaCppFacts:
    """Return the facts with what the log of the start says: the first cache is the model's, a second one a draft's."""
    text = "\n".join(lines)
    threads, cache, speculates = (pattern.search(text) for pattern in (_THREADS, _CACHE, _SPECULATES))
    batch, micro, flash = (pattern.search(text) for pattern in (_BATCH, _MICRO_BATCH, _FLASH))
    return facts._replace(
        threads=int(threads[1]) if threads else None,
        batch_threads=int(threads[2] or threads[1]) if threads else None,
        cache=(cache[1], cache[2]) if cache else None,
        speculation=speculates[1] if speculates else None,
        batch_tokens=int(batch[1]) if batch else None,
        micro_batch_tokens=int(micro[1]) if micro else None,
        flash_attention=flash[1] if flash else None,
    )


def llama_cpp_findings(case: ServedVariant) -> Iterator[Finding]:
    """Yield a finding for each setting of the variant."""
    facts, serving = case.evidence.llama_cpp or LlamaCppFacts(), case.variant.serving
    yield _weights(case, facts)
    yield _at_least("context", "a context of at least", serving.max_model_len, facts.context, "tokens")
    yield _at_least("streams", "slots for", serving.max_num_seqs, facts.slots, "sequences at once")
    yield _threads(case, facts)
    yield _cache_type(case, facts)
    if serving.prefix_caching is False:
        yield _prefix_cache(case)
    yield from _chosen_settings(case.variant.serving, facts)
    if (finding := _speculation(case, facts)) is not None:
        yield finding


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


def _at_least(what: Any, label: str, least: int | None, reported: int | None, unit: str) -> Finding:
    """Return whether the server has at least what was requested; `least` None: its own choice, which is shown."""
    requested = f"{label[0].upper()}{label[1:]} {least:,} {unit} was requested; " if least is not None else ""
    if reported is None:
        return Finding(what=what, proven=None, words=f"{requested}{SERVER} does not say its number of {unit}.")
    words = f"{requested}{SERVER} says {reported:,} {unit}."
    fits = least is None or reported >= least
    return Finding(what=what, proven=fits, words=words, cause="" if fits else "The setting did not reach the server.")


def _threads(case: ServedVariant, facts: LlamaCppFacts) -> Finding:
    """Return the threads that generate and those that read prompts, beside those that were requested."""
    if facts.threads is None or facts.batch_threads is None:
        return Finding(what="threads", proven=None, words=f"{LOG[0].upper()}{LOG[1:]} does not say its threads.")
    serving = case.variant.serving
    words = f"{LOG[0].upper()}{LOG[1:]} says threads={facts.threads}, threads for prompts={facts.batch_threads}."
    pairs = ((serving.threads, facts.threads), (serving.batch_threads, facts.batch_threads))
    fits = all(requested in {None, used} for requested, used in pairs)
    return Finding(what="threads", proven=fits, words=words, cause="" if fits else "Other threads were requested.")


def _chosen_settings(serving: Serving, facts: LlamaCppFacts) -> Iterator[Finding]:
    """Yield a finding on the tokens of a step and one on flash attention, where somebody set them."""
    # 1. Tokens of a step and of a pass.
    pairs = (
        (serving.max_num_batched_tokens, facts.batch_tokens, "n_batch"),
        (serving.micro_batch_tokens, facts.micro_batch_tokens, "n_ubatch"),
    )
    words = [f"{name}={used} ({requested} was requested)" for requested, used, name in pairs if requested is not None]
    if words:
        known = all(used is not None for requested, used, _ in pairs if requested is not None)
        fits = all(requested in {None, used} for requested, used, _ in pairs)
        cause = "" if fits else "llama.cpp takes no more tokens than its context has, and no pass above a step."
        sentence = f"{LOG[0].upper()}{LOG[1:]} says {', '.join(words)}."
        yield Finding(what="batch_tokens", proven=fits if known else None, words=sentence, cause=cause if known else "")
    # 2. Flash attention.
    if serving.flash_attention is not None:
        requested = "enabled" if serving.flash_attention else "disabled"
        logged = facts.flash_attention
        sentence = f"{LOG[0].upper()}{LOG[1:]} says flash_attn={logged or 'nothing'}; {requested} was requested."
        cause = "" if logged in {None, requested} else "The setting did not reach the server."
        yield Finding(
            what="attention", proven=None if logged is None else logged == requested, words=sentence, cause=cause
        )


def _cache_type(case: ServedVariant, facts: LlamaCppFacts) -> Finding:
    """Return whether keys and values are stored in the requested type; `auto` is 16 bits."""
    requested = case.variant.serving.kv_cache_dtype
    if facts.cache is None:
        return Finding(what="kv_cache", proven=None, words=f"{LOG[0].upper()}{LOG[1:]} does not say its cache's type.")
    requested_type = "f16" if requested == "auto" else requested
    keys, values = facts.cache
    words = f"{LOG[0].upper()}{LOG[1:]} says keys in {keys} and values in {values}."
    fits = keys == values == requested_type
    return Finding(what="kv_cache", proven=fits, words=words, cause="" if fits else f"{requested_type} was requested.")


def _speculation(case: ServedVariant, facts: LlamaCppFacts) -> Finding | None:
    """Return the finding on speculation; None where none was requested and none happens."""
    speculation = case.variant.speculation
    kind = llama_cpp_speculation.KINDS.get(speculation.method) if speculation else None
    if speculation is None or kind is None:
        if facts.speculation is None:
            return None
        words = f"It speculates ({facts.speculation}), where no speculation was requested."
        return Finding(what="speculation", proven=False, words=words)
    if facts.speculation != kind:
        words = f"{LOG[0].upper()}{LOG[1:]} says speculation={facts.speculation}, where {kind} was requested."
        return Finding(what="speculation", proven=False, words=words, cause="The setting did not reach the server.")
    return speculation_findings.counted_finding(case, speculation, kind)


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
