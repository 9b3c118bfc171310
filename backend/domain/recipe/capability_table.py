"""The capability table: technique x engine x hardware, as data readable without torch.

A row exists for what this version can do. `capability` gives the reason where there is no row. `domain/kernels` says
what serves the result.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.domain.recipe import quantization_engines
from backend.domain.recipe.methods import PRUNE, QUANTIZE, STRUCTURED, WHY_NOT
from backend.domain.recipe.speculation import OFFERED, SPECULATE

NATIVE_FAMILIES = frozenset(
    {
        "bloom",
        "cohere",
        "cohere2",
        "falcon",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "llama",
        "mistral",
        "mixtral",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
    }
)
"""`model_type` of what the native engine can optimize: the rows of the native engine's table of families."""

MULTIMODAL_FAMILIES = frozenset({"gemma3", "llava", "qwen2_5_vl", "qwen2_vl", "qwen3_vl"})
"""`model_type` of models whose language part the native engine optimizes; a test holds them to shapes of each."""


class Capability(NamedTuple):
    supported: bool
    reason: str = ""
    source: str = "capability table"


_SUPPORTED: dict[tuple[str, str | None, str], frozenset[str]] = {
    **{("quantize", method, "native"): frozenset({"cpu", "cuda"}) for method in QUANTIZE},
    **{("prune", method, "native"): frozenset({"cpu", "cuda"}) for method in (*PRUNE, *STRUCTURED)},
    **{("speculate", method, "native"): frozenset({"cpu", "cuda"}) for method in SPECULATE},
    ("compile", None, "native"): frozenset({"cpu", "cuda"}),
    **quantization_engines.SUPPORTED,
}

"""The hardware on which each can be made. `quantize_step.unserved_reason` says where the result is not served."""

BFLOAT16 = ((8, 0), "vLLM 0.32.0, platforms/cuda.py, supported_dtypes")
FP8_CACHE = ((8, 9), "vLLM 0.32.0, TritonAttentionImpl")


def capability(technique: str, method: str | None, engine: str, hardware: str) -> Capability:
    """Return whether `engine` can do it on that hardware, and if not, the reason and what to use instead."""
    if (technique, method) in WHY_NOT:
        reason, source = WHY_NOT[technique, str(method)]
        return Capability(False, f"{reason}.", source)
    label = technique if method is None else f"{technique} with {method}"
    places = _SUPPORTED.get((technique, method, engine))
    if places is None:
        return Capability(
            False, f"`{label}` by the {engine} engine is not available in this version: {_instead(technique)}."
        )
    if hardware not in places:
        return Capability(False, f"`{label}` does not run on {hardware}: it runs on {', '.join(sorted(places))}.")
    return Capability(True)


def supported(engine: str = "native") -> list[tuple[str, str | None, str, list[str]]]:
    """Return the rows of one engine: technique, method, engine, kinds of hardware.

    Methods that need something of the user's, such as a head, are left out.
    """
    rows = ((*key, sorted(places)) for key, places in _SUPPORTED.items() if key[2] == engine)
    return [row for row in rows if row[0] != "speculate" or row[1] in OFFERED]


def _instead(technique: str) -> str:
    methods = [f"`{method}`" for (name, method, _, _) in supported() if name == technique and method]
    return f"use {' or '.join(methods)} by the native engine" if methods else "leave the step out"
