"""The three libraries that compile models for AWS Neuron, as data: what each names, on which accelerators, and what it can.

Read from their public sources; tests/fakes/neuron/contract.toml has the commits and the signatures. Nothing of it was run on a
device. Knows nothing of memory and of degrees (`cores`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

StackName = Literal["nxd-inference", "transformers-neuronx", "vllm-neuron"]


class Stack(NamedTuple):
    """`model_types` as config.json writes them; `can` are parts of a recipe (`parts` in `compiling`)."""

    title: str
    environment: str
    accelerators: frozenset[str]
    model_types: frozenset[str]
    can: frozenset[str]
    levels: bool
    """The optimization level of the compiler can be given; the others' code sets its own."""
    source: str
    legacy: str | None = None
    """Why it is past its time, and what to use instead."""
    unserved: str | None = None
    """Why no server here takes what it compiled, and what to do instead."""


_TRAINIUM1 = frozenset({"Inferentia2", "Trainium1"})

STACKS: dict[str, Stack] = {
    "nxd-inference": Stack(
        "NxD Inference",
        "neuron",
        _TRAINIUM1 | {"Trainium2"},
        frozenset({"dbrx", "gemma3", "gpt_oss", "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"}),
        frozenset({"compile", "int8", "draft", "fp8-cache"}),
        False,
        "neuronx-distributed-inference 0.9.0 (4bcdc54), utils/constants.py, MODEL_TYPES",
    ),
    "transformers-neuronx": Stack(
        "transformers-neuronx",
        "neuron-legacy",
        _TRAINIUM1,
        # GPT-NeoX and GPT-J are classes there without `save`: nothing of theirs can be compiled ahead of time.
        frozenset({"bloom", "gpt2", "llama", "mistral", "mixtral", "opt"}),
        frozenset({"compile", "int8", "draft", "fp8-cache"}),
        True,
        "transformers-neuronx 0.13 (1ade6d7), its table of classes and what of them can be saved",
        "AWS ended its support on 16 September 2025: prefer NxD Inference where that names the model.",
        "transformers-neuronx was served by forks of vLLM 0 only, which AWS supports no more since Neuron 2.28: compile it with "
        "its successor, `stack: nxd-inference`",
    ),
    "vllm-neuron": Stack(
        "vLLM Neuron",
        "neuron-vllm",
        frozenset({"Trainium2"}),
        frozenset({"gpt_oss", "llama"}),
        # Without a device it compiles no speculation (docs/design/compilation/cpu_compilation.md, Limitations).
        frozenset({"compile", "fp8-cache"}),
        False,
        "AWS Neuron SDK 2.33, vllm-neuron, docs/model-recipes (a3247f5) of aws-neuron-sdk",
    ),
}
ORDER: dict[str, tuple[StackName, ...]] = {
    "Inferentia2": ("nxd-inference", "transformers-neuronx"),
    "Trainium1": ("nxd-inference", "transformers-neuronx"),
    "Trainium2": ("vllm-neuron", "nxd-inference"),
}
"""The one to prefer first, by accelerator."""


def choose(accelerator: str, model_type: str, asked: StackName | None = None) -> StackName | None:
    """The stack that was asked for, else the first for that accelerator that names the model type; None where none does."""
    possible = [name for name in ORDER.get(accelerator, ()) if model_type in STACKS[name].model_types]
    if asked is not None:
        return asked if asked in possible else None
    return possible[0] if possible else None


def named(accelerator: str) -> list[str]:
    """Every model type that some stack for that accelerator names."""
    return sorted({kind for name in ORDER.get(accelerator, ()) for kind in STACKS[name].model_types})
