"""The three libraries that compile models for AWS Neuron, as data: model types, accelerators and features of each.

Read from their public sources; tests/fakes/neuron/contract.toml has the commits and the signatures. Nothing of it was
run on a device. Knows nothing of memory and of degrees (`cores`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

StackName = Literal["nxd-inference", "transformers-neuronx", "vllm-neuron"]


class NeuronStack(NamedTuple):
    """One library.

    `model_types` as config.json writes them; `can` are parts of a recipe (`recipe_parts` in `compile_plan`).
    """

    title: str
    environment: str
    accelerators: frozenset[str]
    model_types: frozenset[str]
    can: frozenset[str]
    levels: bool
    """The optimization level of the compiler can be given; the others' code sets its own."""
    source: str
    legacy: str | None = None
    """The reason not to use it any more, and what to use instead."""
    unserved: str | None = None
    """The reason why no server here takes its results, and what to do instead."""
    eagle: frozenset[str] = frozenset()
    """Model types whose EAGLE heads it compiles."""
    alone: bool = True
    """It compiles speculation without a device too."""


_TRAINIUM1 = frozenset({"Inferentia2", "Trainium1"})
_TRN = ("nxd-inference", "transformers-neuronx", "sagemaker")
_NXD = ("nxd-inference", "sagemaker")
_OLD = ("transformers-neuronx", "sagemaker")
FAMILIES: dict[str, tuple[str, ...]] = {
    "bloom": _OLD,
    "dbrx": _NXD,
    "gemma3": ("nxd-inference",),
    "gpt2": _OLD,
    "gpt_bigcode": ("sagemaker",),
    "gpt_neox": ("sagemaker",),
    "gpt_oss": ("nxd-inference", "vllm-neuron"),
    "gptj": ("sagemaker",),
    "llama": (*_TRN, "vllm-neuron"),
    "mistral": _TRN,
    "mixtral": _TRN,
    "opt": _OLD,
    "qwen2": _NXD,
    "qwen3": _NXD,
    "qwen3_moe": _NXD,
}
"""`model_type` of config.json -> who names it: our stacks, and `sagemaker`, the managed toolkit's containers. GPT-NeoX,
GPT-J and StarCoder are classes of transformers-neuronx without `save`: only a container that compiles when it starts
has them."""
SAGEMAKER_SOURCE = (
    "DJL Serving 0.29, LMI, Transformers-NeuronX engine, supported model architectures; AWS Neuron SDK 2.33, NxD "
    "Inference, supported model architectures"
)


def families(name: str) -> frozenset[str]:
    """Return the model types that a stack, or `sagemaker`, names."""
    return frozenset(model_type for model_type, names in FAMILIES.items() if name in names)


STACKS: dict[str, NeuronStack] = {
    "nxd-inference": NeuronStack(
        "NxD Inference",
        "neuron",
        _TRAINIUM1 | {"Trainium2"},
        families("nxd-inference"),
        frozenset({"compile", "int8", "draft", "eagle", "eagle3", "fp8-cache"}),
        False,
        "neuronx-distributed-inference 0.9.0 (4bcdc54), utils/constants.py, MODEL_TYPES",
        eagle=frozenset({"llama"}),
    ),
    "transformers-neuronx": NeuronStack(
        "transformers-neuronx",
        "neuron-legacy",
        _TRAINIUM1,
        families("transformers-neuronx"),
        frozenset({"compile", "int8", "draft", "fp8-cache"}),
        True,
        "transformers-neuronx 0.13 (1ade6d7), its table of classes and what of them can be saved",
        "AWS ended its support on 16 September 2025: prefer NxD Inference where that names the model.",
        "transformers-neuronx was served by forks of vLLM 0 only, which AWS supports no more since Neuron 2.28: "
        "compile it with its successor, `stack: nxd-inference`",
    ),
    "vllm-neuron": NeuronStack(
        "vLLM Neuron",
        "neuron-vllm",
        frozenset({"Trainium2", "Trainium3"}),
        families("vllm-neuron"),
        frozenset({"compile", "eagle3", "fp8-cache"}),
        False,
        "AWS Neuron SDK 2.33, vllm-neuron, docs/model-recipes (81ce03a) of aws-neuron-sdk",
        eagle=frozenset({"gpt_oss", "llama"}),
        alone=False,
    ),
}
ORDER: dict[str, tuple[StackName, ...]] = {
    "Inferentia2": ("nxd-inference", "transformers-neuronx"),
    "Trainium1": ("nxd-inference", "transformers-neuronx"),
    "Trainium2": ("vllm-neuron", "nxd-inference"),
    "Trainium3": ("vllm-neuron",),
}
"""The stacks in order of preference, by accelerator."""


def choose_stack(accelerator: str, model_type: str, stated: StackName | None = None) -> StackName | None:
    """Return the stated stack, else the first for that accelerator that names the model type; None where none does."""
    possible = (name for name in ORDER.get(accelerator, ()) if model_type in STACKS[name].model_types)
    return next((name for name in possible if stated in {None, name}), None)


def named_model_types(accelerator: str) -> list[str]:
    """Return every model type that some stack for that accelerator names."""
    named: set[str] = set()
    for name in ORDER.get(accelerator, ()):
        named |= STACKS[name].model_types
    return sorted(named)
