"""NeuronCores: how many work as one, which tensor parallel degrees exist, and whether a model fits on one of them.

Pure; bytes throughout. Knows no stack.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.domain.machine.device import Device
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import serving_memory
from backend.domain.needs.serving_memory import DeviceMemory
from backend.domain.recipe.recipe import Recipe


class Silicon(NamedTuple):
    """`target` is the libraries' word: Inferentia2 has the cores of Trainium1 and goes by its name (neuronx-distributed
    3aa65c6, utils/utils.py, `hardware`); `joined` physical cores are one logical core."""

    target: str
    degrees: tuple[int, ...]
    joined: int
    source: str


GUIDE = "AWS Neuron documentation, transformers-neuronx developer guide, tensor-parallelism support"
SILICON = {
    "Inferentia2": Silicon("trn1", (1, 2, 4, 8, 24), 1, GUIDE),
    "Trainium1": Silicon("trn1", (1, 2, 8, 32), 1, GUIDE),
    "Trainium2": Silicon(
        "trn2",
        (1, 2, 4, 8, 16, 32, 64),
        2,
        "AWS Neuron documentation, logical NeuronCores (two are one); powers of two assumed",
    ),
    "Trainium3": Silicon(
        "trn3",
        (1, 2, 4, 8, 16, 32, 64),
        2,
        "AWS Neuron documentation, logical NeuronCores and Trainium3; powers of two assumed",
    ),
}
"""Facts by the accelerator's name in assets/catalog/instances.toml."""


def logical_device(device: Device) -> Device:
    """Return the device in the cores that a program sees, with the memory and the rates of one."""
    joined = SILICON[device.name].joined if device.name in SILICON else 1
    rates = {name: getattr(device, name) for name in ("bandwidth", "flops", "int8_ops", "link")}
    more = {name: rate * joined for name, rate in rates.items() if rate is not None}
    return device._replace(units=device.units // joined, memory_bytes=device.memory_bytes * joined, **more)


def degrees(device: Device) -> tuple[int, ...]:
    """Return the tensor parallel degrees on that instance, lowest first; empty for an unknown accelerator."""
    silicon = SILICON.get(device.name)
    return tuple(degree for degree in silicon.degrees if degree <= logical_device(device).units) if silicon else ()


def core_memory(
    model: ModelFacts, recipe: Recipe, device: Device, degree: int, draft: ModelFacts | None = None
) -> DeviceMemory:
    """Return the memory of one logical core, with the heads that are padded and copied for that degree."""
    padded_draft = pad_model(draft, degree) if draft else None
    return serving_memory.device_memory(pad_model(model, degree), recipe, logical_device(device), degree, padded_draft)


def pad_model(model: ModelFacts, degree: int) -> ModelFacts:
    """Return the model with its heads as they are cut over `degree` cores, and the parameters that this adds."""
    heads, kv_heads = padded_heads(model, degree)
    more = 2 * model.layers * (heads - model.heads + kv_heads - model.kv_heads) * model.head_dim * model.hidden_size
    return model.model_copy(update={"heads": heads, "kv_heads": kv_heads, "parameters": model.parameters + more})


def fits(model: ModelFacts, recipe: Recipe, device: Device, degree: int, draft: ModelFacts | None = None) -> bool:
    """Return whether weights, runtime and the cache of every sequence at full length surely fit on each core."""
    return core_memory(model, recipe, device, degree, draft).holds(batch_size(recipe) * positions(model, recipe))


def batch_size(recipe: Recipe) -> int:
    """Return the sequences that are compiled for: the size is fixed at compilation."""
    return recipe.serving.max_num_seqs or 1


def positions(model: ModelFacts, recipe: Recipe) -> int:
    """Return the tokens of prompt and answer that are compiled for."""
    return serving_memory.required_cache_tokens(model, recipe)


def padded_heads(model: ModelFacts, degree: int) -> tuple[int, int]:
    """Return (attention heads, KV heads) after padding to whole heads per core and copying scarce KV heads.

    NxD Inference, modules/attention/gqa.py: to the degree where the KV heads divide it, else one per query head.
    """
    heads = -(-model.heads // degree) * degree
    if model.heads == model.kv_heads:
        return heads, heads
    if model.kv_heads % degree == 0:
        return heads, model.kv_heads
    return heads, degree if degree % model.kv_heads == 0 else heads
