"""Collects, for each thing that a variant requests of its server, the finding whether it was done. Pure.

Every finding quotes what was seen. What nobody can see is reported as such, and is not a failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backend.domain.evaluation.document import Level, Variant
from backend.domain.evaluation.evidence import (
    cache_findings,
    llama_cpp_findings,
    openvino_findings,
    speculation_findings,
    weight_findings,
)
from backend.domain.evaluation.evidence.schema import Aspect, Finding, worst_findings
from backend.domain.evaluation.evidence.served_variant import ServedVariant, StartEvidence, compare_setting

NO_CONFIGURATION = "The engine's log does not hold its configuration, so its settings cannot be checked."

NO_SHORT = "vLLM computes in 32 bits where the hardware has no 16-bit products."


def findings(
    variant: Variant, config: Mapping[str, Any], starts: Sequence[StartEvidence], levels: Sequence[Level]
) -> list[Finding]:
    """Return the worst finding of each aspect over every start of the variant's server.

    Empty for a URL, which was not started here, and for Neuron, whose plugin has settings of its own.
    """
    if variant.kind == "url" or variant.neuron is not None:
        return []
    cases = [ServedVariant(variant, config, evidence, levels) for evidence in starts]
    return worst_findings(list(_findings(case)) for case in cases)


def _findings(case: ServedVariant) -> Iterator[Finding]:
    if case.variant.serving.engine == "llama.cpp":
        yield from llama_cpp_findings.llama_cpp_findings(case)
        return
    if case.variant.serving.engine == "openvino":
        yield from openvino_findings.openvino_findings(case)
        return
    if not case.evidence.log.settings:
        yield Finding(what="quantization", proven=None, words=NO_CONFIGURATION)
        return
    yield from weight_findings.weight_findings(case)
    yield from filter(None, [speculation_findings.speculation_finding(case)])
    yield _compilation(case)
    yield from cache_findings.cache_findings(case)
    yield _dtype(case)
    yield _context(case)
    yield from filter(None, [_streams(case), _parallel(case), _chunked(case)])
    yield from _chosen_settings(case)


def _compilation(case: ServedVariant) -> Finding:
    eager, mode = case.setting("enforce_eager"), case.evidence.log.mode
    if case.variant.serving.enforce_eager:
        finding = compare_setting(
            "compilation", "True", eager, name="enforce_eager", cause="The flag did not reach the server."
        )
    elif eager == "True" or mode == "NONE":
        cause = case.cause("torch.compile", "eager", default="The server was started without compilation.")
        words = (
            f"Nothing is compiled: the engine's log says enforce_eager={eager}, compilation mode {mode or 'not given'}."
        )
        finding = Finding(what="compilation", proven=False, words=words, cause=cause)
    else:
        finding = _compiled(case)
    return finding


def _compiled(case: ServedVariant) -> Finding:
    """Return the finding where compilation is on: whether it was done and the variant's own cache was used."""
    # 1. Not compiled at all.
    startup, shipped = case.evidence.startup, case.variant.compile_cache is not None
    if startup is None or startup.kind == "eager":
        unsupported = case.cause("torch.compile")
        words = "Compilation is on, but the engine's log shows none."
        proven = False if shipped or unsupported else None
        cause = unsupported or (
            "vLLM does not compile this model, so its compile cache is not used." if shipped else ""
        )
        return Finding(what="compilation", proven=proven, words=words, cause=cause)
    # 2. Compiled again, although the variant came with compiled code.
    if shipped and startup.kind == "cold":
        again = startup.compiled_again or "it is of another processor, version or setting"
        words = "The model was compiled at start although it came with a compile cache."
        return Finding(
            what="compilation",
            proven=False,
            words=words,
            cause=f"The compile cache was not loaded: {again.rstrip('.')}.",
        )
    # 3. Compiled or loaded.
    how = "loaded compiled code" if startup.kind == "cached" else "compiled at start"
    return Finding(
        what="compilation", proven=True, words=f"The engine's log says that it {how} (mode {case.evidence.log.mode})."
    )


def _dtype(case: ServedVariant) -> Finding:
    # 1. A requested dtype.
    requested, logged = case.variant.serving.dtype, (case.setting("dtype") or "").removeprefix("torch.") or None
    own = str(case.config.get("dtype") or case.config.get("torch_dtype") or "").removeprefix("torch.")
    if requested != "auto":
        cause = case.cause("casting", "dtype", default="The requested precision did not reach the server.")
        return compare_setting("dtype", requested, logged, name="dtype", cause=cause)
    # 2. A processor without short floats computes in fp32.
    if logged == "float32" and own in {"bfloat16", "float16"}:
        return compare_setting(
            "dtype", own, logged, name="dtype", cause=case.cause("casting", "dtype", default=NO_SHORT)
        )
    # 3. vLLM's own choice.
    words = (
        f"The engine's log says dtype={logged}, vLLM's own choice."
        if logged
        else "The engine's log does not say the dtype."
    )
    return Finding(what="dtype", proven=True if logged else None, words=words)


def _context(case: ServedVariant) -> Finding:
    requested, logged = case.variant.serving.max_model_len, case.setting("max_seq_len")
    if requested is not None:
        cause = case.cause(
            "max_model_len", "max model len", default="The server was started with another context length."
        )
        return compare_setting("context", str(requested), logged, name="max_seq_len", cause=cause)
    # vLLM takes the least of what config.json and the tokenizer's own config say: shorter than the one is no fault
    words = (
        f"The engine's log says max_seq_len={logged}, vLLM's own choice."
        if logged
        else "The engine's log does not say the longest sequence."
    )
    return Finding(what="context", proven=True if logged else None, words=words)


def _streams(case: ServedVariant) -> Finding | None:
    """Return the finding on sequences at once; vLLM logs the setting only where it is not its own default."""
    requested, log = case.variant.serving.max_num_seqs, case.evidence.log
    if requested is None:
        return None
    if log.running > requested:
        words = f"{log.running} sequences ran at once, where at most {requested} were requested."
        return Finding(
            what="streams", proven=False, words=words, cause="The most sequences at once did not reach the server."
        )
    cause = "The server was started with another number of sequences at once."
    return compare_setting(
        "streams", str(requested), log.arguments.get("max_num_seqs"), name="max_num_seqs", cause=cause
    )


def _parallel(case: ServedVariant) -> Finding | None:
    requested, logged = str(case.variant.serving.tensor_parallel), case.setting("tensor_parallel_size")
    if requested == "1" and logged in {None, "1"}:
        return None
    cause = "The tensor parallel degree did not reach the server, or there are fewer devices."
    return compare_setting("tensor_parallel", requested, logged, name="tensor_parallel_size", cause=cause)


def _chunked(case: ServedVariant) -> Finding | None:
    requested = case.variant.serving.chunked_prefill
    if requested is None:
        return None
    cause = case.cause("chunked prefill", default="vLLM turns it on or off by the model and the runner.")
    return compare_setting(
        "chunked_prefill",
        str(requested),
        case.setting("enable_chunked_prefill"),
        name="enable_chunked_prefill",
        cause=cause,
    )


def _logged(case: ServedVariant, name: str, requested: int | None) -> tuple[str, int | None, str | None]:
    """Return a setting by its name in the engine's configuration, as requested and as logged."""
    return name, requested, case.setting(name)


def _chosen_settings(case: ServedVariant) -> Iterator[Finding]:
    """Yield a finding for each of these settings that somebody set."""
    serving, log = case.variant.serving, case.evidence.log
    rows: tuple[tuple[Aspect, str, Any, str | None], ...] = (
        ("batch_tokens", "max_num_batched_tokens", serving.max_num_batched_tokens, None),
        ("performance_mode", "performance_mode", serving.performance_mode, None),
        ("cache_blocks", "block_size", serving.block_size, case.evidence.cache.get("block_size")),
        ("attention", "attention backend", serving.attention_backend, log.attention),
        ("pipeline_parallel", *_logged(case, "pipeline_parallel_size", serving.pipeline_parallel)),
        ("data_parallel", *_logged(case, "data_parallel_size", serving.data_parallel)),
        ("expert_parallel", "enable_expert_parallel", serving.expert_parallel or None, None),
    )
    for what, name, requested, reported in rows:
        if requested is not None:
            cause = case.cause("backend", "block size", default="vLLM chose otherwise for this model or hardware.")
            logged = reported or log.arguments.get(name)
            yield compare_setting(what, str(requested), logged, name=name, cause=cause)
