"""What proves, for each thing that a variant asks of its server, that it was done during the measurement. Pure:
evidence in, findings out. Every finding quotes what was seen; what nobody can see is said so, and is no accusation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backend.domain.evaluation.document import Level, Variant
from backend.domain.evaluation.evidence import cache_findings, speculation_findings, weight_findings
from backend.domain.evaluation.evidence.schema import Finding, worst_findings
from backend.domain.evaluation.evidence.served_variant import ServedVariant, StartEvidence, compare_setting

NO_CONFIGURATION = "The engine's log does not hold its configuration, so nothing can be proven of how it served."

NO_SHORT = "vLLM computes in 32 bits where the hardware has no 16-bit products."


def findings(
    variant: Variant, config: Mapping[str, Any], starts: Sequence[StartEvidence], levels: Sequence[Level]
) -> list[Finding]:
    """Of every start of its server; of each thing the worst. None of a URL, which nobody asked anything, nor of what
    was compiled for Neuron, whose plugin has settings of its own."""
    if variant.kind == "url" or variant.neuron is not None:
        return []
    return worst_findings(list(_of(ServedVariant(variant, config, seen, levels))) for seen in starts)


def _of(case: ServedVariant) -> Iterator[Finding]:
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


def _compilation(case: ServedVariant) -> Finding:
    eager, mode = case.setting("enforce_eager"), case.evidence.log.mode
    if case.variant.serving.enforce_eager:
        finding = compare_setting(
            "compilation", "True", eager, name="enforce_eager", cause="The flag did not reach the server."
        )
    elif eager == "True" or mode == "NONE":
        cause = case.cause("torch.compile", "eager", default="The server was started without compilation.")
        words = (
            f"Nothing is compiled: the engine's log says enforce_eager={eager}, compilation mode {mode or 'not told'}."
        )
        finding = Finding(what="compilation", proven=False, words=words, cause=cause)
    else:
        finding = _compiled(case)
    return finding


def _compiled(case: ServedVariant) -> Finding:
    """Where compilation is on: whether it was done, and whether what came with the variant was used."""
    startup, shipped = case.evidence.startup, case.variant.compile_cache is not None
    if startup is None or startup.kind == "eager":
        unsupported = case.cause("torch.compile")
        words = "Compilation is on, but the engine's log shows none."
        proven = False if shipped or unsupported else None
        cause = unsupported or ("vLLM does not compile this model, so that its cache is of no use." if shipped else "")
        return Finding(what="compilation", proven=proven, words=words, cause=cause)
    if shipped and startup.kind == "cold":
        again = startup.compiled_again or "it is of another processor, version or setting"
        words = "The model was compiled at start, where a compile cache came with it."
        return Finding(
            what="compilation", proven=False, words=words, cause=f"What was kept was not loaded: {again.rstrip('.')}."
        )
    how = "loaded what was compiled before" if startup.kind == "cached" else "compiled at start"
    return Finding(
        what="compilation", proven=True, words=f"The engine's log says that it {how} (mode {case.evidence.log.mode})."
    )


def _dtype(case: ServedVariant) -> Finding:
    asked, seen = case.variant.serving.dtype, (case.setting("dtype") or "").removeprefix("torch.") or None
    own = str(case.config.get("dtype") or case.config.get("torch_dtype") or "").removeprefix("torch.")
    if asked != "auto":
        cause = case.cause("casting", "dtype", default="The precision that was asked did not reach the server.")
        return compare_setting("dtype", asked, seen, name="dtype", cause=cause)
    if seen == "float32" and own in {"bfloat16", "float16"}:
        return compare_setting("dtype", own, seen, name="dtype", cause=case.cause("casting", "dtype", default=NO_SHORT))
    words = (
        f"The engine's log says dtype={seen}, vLLM's own choice."
        if seen
        else "The engine's log does not say the dtype."
    )
    return Finding(what="dtype", proven=True if seen else None, words=words)


def _context(case: ServedVariant) -> Finding:
    asked, seen = case.variant.serving.max_model_len, case.setting("max_seq_len")
    if asked is not None:
        cause = case.cause(
            "max_model_len", "max model len", default="The server was started with another context length."
        )
        return compare_setting("context", str(asked), seen, name="max_seq_len", cause=cause)
    # vLLM takes the least of what config.json and the tokenizer's own config say: shorter than the one is no fault
    words = (
        f"The engine's log says max_seq_len={seen}, vLLM's own choice."
        if seen
        else "The engine's log does not say the longest sequence."
    )
    return Finding(what="context", proven=True if seen else None, words=words)


def _streams(case: ServedVariant) -> Finding | None:
    """vLLM writes it only where it is not its own default."""
    asked, log = case.variant.serving.max_num_seqs, case.evidence.log
    if asked is None:
        return None
    if log.running > asked:
        words = f"{log.running} sequences ran at once, where {asked} at most were asked."
        return Finding(
            what="streams", proven=False, words=words, cause="The most sequences at once did not reach the server."
        )
    cause = "The server was started with another number of sequences at once."
    return compare_setting("streams", str(asked), log.arguments.get("max_num_seqs"), name="max_num_seqs", cause=cause)


def _parallel(case: ServedVariant) -> Finding | None:
    asked, seen = str(case.variant.serving.tensor_parallel), case.setting("tensor_parallel_size")
    if asked == "1" and seen in {None, "1"}:
        return None
    cause = "The tensor parallel degree did not reach the server, or there are not so many devices."
    return compare_setting("tensor_parallel", asked, seen, name="tensor_parallel_size", cause=cause)


def _chunked(case: ServedVariant) -> Finding | None:
    asked = case.variant.serving.chunked_prefill
    if asked is None:
        return None
    cause = case.cause("chunked prefill", default="vLLM turns it on or off by the model and the runner.")
    return compare_setting(
        "chunked_prefill",
        str(asked),
        case.setting("enable_chunked_prefill"),
        name="enable_chunked_prefill",
        cause=cause,
    )
