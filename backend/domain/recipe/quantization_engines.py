"""The quantization engines as data: when to prefer which, what the libraries can do, and the environment of each.

The native engine is the studio's own; llm-compressor and AutoAWQ are other projects, offered for comparison and for
pipelines that require them. Pure; knows nothing of what is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from backend.domain.recipe.recipe import Quantize


class Engine(NamedTuple):
    """One engine. `prefer` says when to choose it.

    `environment` must be installed for it; None for the studio's own.
    """

    title: str
    prefer: str
    environment: str | None
    version: str


ENGINES: dict[str, Engine] = {
    "native": Engine(
        "Native",
        "The studio's own engine. Prefer it unless you need what only a library has.",
        None,
        "",
    ),
    "llm-compressor": Engine(
        "llm-compressor",
        "The vLLM project's library. Prefer it to reproduce its results, or for a family the native engine does not "
        "know; it holds the whole model in memory.",
        "compress",
        "0.14.0.1",
    ),
    "autoawq": Engine(
        "AutoAWQ (legacy)",
        "Deprecated by its author. Prefer it only where a pipeline asks for files made by AutoAWQ itself.",
        "compress",
        "0.2.9",
    ),
}

PLACES = frozenset({"cpu", "cuda"})
SUPPORTED: dict[tuple[str, str | None, str], frozenset[str]] = {
    **{
        ("quantize", method, "llm-compressor"): PLACES
        for method in ("awq", "gptq", "smoothquant", "w8a8", "fp8", "rtn")
    },
    **{("prune", method, "llm-compressor"): PLACES for method in ("wanda", "sparsegpt")},
    ("quantize", "awq", "autoawq"): PLACES,
}
"""Rows of the capability table."""

NATIVE_ONLY = (
    "act_order",
    "awq_scales",
    "clip",
    "activations",
    "strength",
    "kv_cache",
    "eight_bits",
    "learning_steps",
    "loss_weights",
    "rotate",
)
"""Options of a quantize step that the libraries are not handed: they keep their own defaults."""

AUTOAWQ_FAMILIES = frozenset({"llama", "mistral", "qwen2"})
"""Families that AutoAWQ 0.2.9 quantizes under transformers 5.17; it names more, whose code has moved on since."""


def environment(engine: str) -> str | None:
    """Return the environment that a step's engine runs in; None where the worker itself runs it."""
    return ENGINES[engine].environment if engine in ENGINES else None


def refusals(step: Quantize, model_id: str, model_type: str) -> Iterator[tuple[str, str]]:
    """Yield (sentence, source) for each option of the step that its library does not support."""
    if step.engine == "native":
        return
    # 1. Options that no library takes.
    for name in NATIVE_ONLY:
        if getattr(step, name, None) is not None:
            yield (
                f"`{name}` is an option of the native engine: leave it out, or use `engine: native`.",
                "capability table",
            )
    if step.bits not in {None, 4} and step.method in {"awq", "gptq", "rtn"}:
        yield f"{step.engine} quantizes with {step.method} to 4 bits here: leave `bits` out.", "capability table"
    # 2. Each library, by its own format.
    if step.engine == "llm-compressor" and step.format != "compressed-tensors":
        yield (
            "llm-compressor writes compressed-tensors: leave `format` out, or use another engine.",
            "llm-compressor 0.14.0.1",
        )
    if step.engine != "autoawq":
        return
    if step.symmetric:
        yield "AutoAWQ's format always has zero points: leave `symmetric` out.", "AutoAWQ 0.2.9, AwqQuantizer"
    if model_type not in AUTOAWQ_FAMILIES:
        known = ", ".join(sorted(AUTOAWQ_FAMILIES))
        message = f"AutoAWQ cannot quantize {model_id}, a model of type {model_type}: it works here for {known}."
        yield message, "AutoAWQ 0.2.9 under transformers 5.17"
