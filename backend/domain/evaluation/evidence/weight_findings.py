"""Findings on the served weights: the requested ones, in their own precision, by kernels made for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from backend.domain.evaluation.evidence.engine_log import EngineLog, Kernel
from backend.domain.evaluation.evidence.schema import Finding
from backend.domain.evaluation.evidence.served_variant import ServedVariant

_FALLBACK = re.compile(r"Emulation|Fallback|Dequant|Unquantized|Naive")
"""Names of kernels that compute in 16 bits what is kept in fewer."""
_QUANTIZED_INPUTS = re.compile(r"A[48](?!\d)|FP8 ?linear|fp8", re.IGNORECASE)
VLLM_READERS = {"moe_wna16", "inc", "humming"}
"""vLLM's own readers of others' formats; the others have the format's name in theirs: awq becomes auto_awq or
awq_marlin."""
ONLY_WEIGHTS = ("native support", "slow and unoptimized", "Tried to force")
WITHIN_GIB, WITHIN = 0.02, 0.05
"""The log rounds to 0.01 GiB; beside the weights a folder holds little."""


def quantization_finding(expected: str | None, log: EngineLog, verb: str = "requested") -> Finding:
    """Compare the served quantization with `expected`, the weights' own `quant_method`."""
    stated = log.settings.get("quantization")
    if stated is None:
        words = "The served format of the weights cannot be checked: the engine's log does not say it."
        return Finding(what="quantization", proven=None, words=words)
    same = (
        stated == "None"
        if expected is None
        else expected == stated or expected in stated.split("_") or stated in VLLM_READERS
    )
    words = f"The engine's log says quantization={stated}" + (
        "." if same else f", where {expected or 'none'} was {verb}."
    )
    return Finding(what="quantization", proven=same, words=words, cause="" if same else _unread(expected))


def _unread(expected: str | None) -> str:
    if expected is None:
        return "There is a quantized folder in place of the original, or a flag of the server quantizes at load."
    return "The server was pointed at other weights, or does not read their quantization_config."


def weight_findings(case: ServedVariant) -> Iterator[Finding]:
    """Yield the finding on the loaded weights and the one on the kernels of quantized layers."""
    config = case.config.get("quantization_config") or {}
    yield _loaded(case, quantization_finding(config.get("quant_method"), case.evidence.log))
    if config and case.setting("quantization") not in {None, "None"}:
        yield _kernels(case, config)


def _loaded(case: ServedVariant, finding: Finding) -> Finding:
    """Return the finding, or a failed one if the weights are random or of another size than the requested ones."""
    # 1. Random weights.
    size, loaded = case.variant.bytes_on_disk, case.evidence.log.checkpoint_gib
    if case.setting("load_format") == "dummy":
        words = "The engine's log says load_format=dummy: the weights are random."
        return Finding(
            what="quantization", proven=False, words=words, cause="The server was started with made-up weights."
        )
    # 2. Weights of another size than those on disk.
    if (
        finding.proven
        and size
        and loaded is not None
        and abs(loaded - size / 2**30) > max(WITHIN_GIB, WITHIN * size / 2**30)
    ):
        words = (
            f"{finding.words} But it loaded {loaded:g} GiB, where the requested weights take {size / 2**30:.2f} GiB."
        )
        return Finding(what="quantization", proven=False, words=words, cause="The server was pointed at other weights.")
    return finding


def _kernels(case: ServedVariant, config: Mapping[str, Any]) -> Finding:
    # 1. The server gives a reason why the layers do not run quantized.
    kernels = case.evidence.log.kernels
    named = "; ".join(f"{kernel.name} for {kernel.layers}" for kernel in kernels)
    if why := case.cause(*ONLY_WEIGHTS):
        words = f"The quantized layers do not run as requested ({named or 'no kernel named'})."
        return Finding(what="kernel", proven=False, words=words, cause=why)
    # 2. A kernel that computes in 16 bits.
    if any(_FALLBACK.search(kernel.name) for kernel in kernels):
        words = f"The engine's log says {named}: it computes in 16 bits."
        return Finding(
            what="kernel", proven=False, words=words, cause="vLLM has no kernel for this format on this hardware."
        )
    # 3. No kernel at all.
    if not kernels:
        ours = config.get("quant_method") == "compressed-tensors"
        words = "No kernel of a quantized layer is named in the engine's log" + (": none was made." if ours else ".")
        cause = "Every layer is on the format's `ignore` list, or none matches its targets." if ours else ""
        return Finding(what="kernel", proven=False if ours else None, words=words, cause=cause)
    return _precision(kernels, config, named)


def _precision(kernels: tuple[Kernel, ...], config: Mapping[str, Any], named: str) -> Finding:
    """Return the finding on the inputs of products: W8A8 that is served as W8A16 quantizes only the weights."""
    groups = (config.get("config_groups") or {}).values()
    quantizes_inputs = any(group.get("input_activations") for group in groups)
    has_quantized_inputs = any(_QUANTIZED_INPUTS.search(f"{kernel.name} {kernel.layers}") for kernel in kernels)
    if quantizes_inputs and not has_quantized_inputs:
        words = f"The engine's log says {named}: only weights are quantized, where activations were requested too."
        return Finding(
            what="kernel", proven=False, words=words, cause="vLLM has no kernel for the activations on this hardware."
        )
    return Finding(what="kernel", proven=True, words=f"The engine's log says {named}.")
