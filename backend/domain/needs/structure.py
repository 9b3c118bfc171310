"""The sizes that structured pruning leaves of a model: fewer layers, narrower ones, or fewer experts.

Pure arithmetic over the facts. The planner predicts with the smaller model and the engine makes that one, so a target
is met or refused before any work. Layers' time goes by the parameters of their matrices that a token meets: a step
reads them from memory, and a prompt multiplies by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from backend.domain.figures import figure
from backend.domain.frozen import Frozen
from backend.domain.model.facts import ModelCard, ModelFacts
from backend.domain.model.shapes import linears, sizes
from backend.domain.needs import serving_memory
from backend.domain.recipe import quantize_step
from backend.domain.recipe.methods import GGUF, GROUP_SIZE, TARGETS, USUAL_CUT
from backend.domain.recipe.recipe import Prune, Quantize, Recipe

KERNEL_MULTIPLES = (128, 64, 32)
"""Multiples that sizes are rounded to, the largest that divides the original's: the tiles of kernels, and the groups
in which weights are quantized."""
SUPER_BLOCK = 256
"""Weights of a row that llama.cpp's K types store as one."""


class Structure(Frozen):
    """The sizes of a model that structured pruning changes, in elements. `experts` is None for a dense model."""

    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    hidden: int
    experts: int | None = None


class StructureSearch(NamedTuple):
    """The structure that was found for a target, and whether it reaches it: if not, it is the smallest there is."""

    structure: Structure
    reached: bool


def find_step(recipe: Recipe) -> Prune | None:
    """Return the recipe's structured pruning; None where it has none."""
    step = recipe.step("prune")
    return step if isinstance(step, Prune) and step.structured else None


def structure_of(model: ModelFacts) -> Structure:
    """Return the sizes that the model has."""
    return Structure(
        layers=model.layers,
        intermediate=model.intermediate_size,
        heads=model.heads,
        kv_heads=model.kv_heads,
        hidden=model.hidden_size,
        experts=model.experts,
    )


def target(step: Prune) -> tuple[str, float]:
    """Return the name and the value of the step's target, or the usual one: experts take no time from a token."""
    stated = next((name for name in TARGETS if getattr(step, name) is not None), None)
    if stated is not None:
        return stated, float(getattr(step, stated))
    return ("cut_parameters" if step.method == "experts" else "cut_time"), USUAL_CUT


def apply(model: ModelFacts, recipe: Recipe) -> tuple[ModelFacts, Recipe]:
    """Return the smaller model, and the recipe of what is left to do with it; both as they are without a structured
    pruning. A target that is not reached gives the smallest model there is."""
    return (model, recipe) if find_step(recipe) is None else _apply(model, recipe)


@lru_cache(maxsize=1024)
def _apply(model: ModelFacts, recipe: Recipe) -> tuple[ModelFacts, Recipe]:
    step = find_step(recipe)
    rest = recipe.model_copy(update={"steps": tuple(other for other in recipe.steps if other is not step)})
    return cut_model(model, find_structure(model, recipe).structure), rest


@lru_cache(maxsize=1024)
def find_structure(model: ModelFacts, recipe: Recipe) -> StructureSearch:
    """Return the largest structure that reaches the step's target, for a recipe that has such a step.

    The last ones are remembered: the catalog asks for the same model on each kind of hardware.
    """
    step = find_step(recipe)
    if step is None:
        raise ValueError("the recipe has no structured pruning")
    rest = recipe.model_copy(update={"steps": tuple(other for other in recipe.steps if other is not step)})

    def reaches(candidate: Structure) -> bool:
        return measure(model, cut_model(model, candidate), rest, target(step)[0]) >= _required(step)

    candidates = list_structures(model, recipe)
    if not candidates or not reaches(candidates[-1]):
        return StructureSearch(candidates[-1] if candidates else structure_of(model), reached=False)
    # They become smaller one after the other, so the first that reaches the target is found by halving.
    low, high = -1, len(candidates) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(candidates[middle]) else (middle, high)
    structure = candidates[high]
    grown = _grown(model, structure, recipe, reaches) if step.method == "width" else structure
    return StructureSearch(grown, reached=True)


def measure(model: ModelFacts, smaller: ModelFacts, rest: Recipe, name: str) -> float:
    """Return what is compared with the target of that name: the share removed, or minus the bytes of the weights."""
    if name == "cut_time":
        return 1 - layer_time(smaller) / max(1, layer_time(model))
    if name == "cut_parameters":
        return 1 - smaller.parameters / max(1, model.parameters)
    return -float(serving_memory.weights(smaller, rest).total)


def _required(step: Prune) -> float:
    name, value = target(step)
    return -value if name == "max_bytes" else value - 1e-9


def layer_time(model: ModelFacts) -> int:
    """Return the parameters of all layers' matrices that a token meets, by which their time goes."""
    return sizes(model).active_linears


def list_structures(model: ModelFacts, recipe: Recipe) -> list[Structure]:
    """Return the structures that the step can leave, from the largest to the smallest; the model's own is not among
    them."""
    step, own = find_step(recipe), structure_of(model)
    if step is None:
        return []
    if step.method == "depth":
        return [own.model_copy(update={"layers": count}) for count in range(model.layers - 1, 0, -1)]
    if step.method == "experts":
        fewest = max(1, model.experts_per_token or 1)
        return [own.model_copy(update={"experts": count}) for count in range((model.experts or 0) - 1, fewest - 1, -1)]
    return _widths(model, recipe, step)


def _widths(model: ModelFacts, recipe: Recipe, step: Prune) -> list[Structure]:
    """Return narrower structures: each part has the same share of its own size, rounded up to its multiple."""
    # 1. Steps of each part that may shrink: (field, its size, its multiple).
    own, parts = structure_of(model), (step.parts or "mlp").split("+")
    steps = {"intermediate": multiple(model.intermediate_size, recipe)}
    if "heads" in parts:
        steps["kv_heads"] = 1
    if "hidden" in parts:
        steps["hidden"] = multiple(model.hidden_size, recipe)
    # 2. Every share at which a part changes, the largest first.
    shares = {
        count * size / getattr(own, name)
        for name, size in steps.items()
        for count in range(1, getattr(own, name) // size)
    }
    structures: dict[Structure, None] = {}
    for share in sorted(shares, reverse=True):
        values = {
            name: min(getattr(own, name), size * math.ceil(share * getattr(own, name) / size - 1e-9))
            for name, size in steps.items()
        }
        structures[_with_groups(own, values)] = None
    # 3. The smallest: one multiple of each.
    least = {name: min(getattr(own, name), size) for name, size in steps.items()}
    structures[_with_groups(own, least)] = None
    return [structure for structure in structures if structure != own]


def _with_groups(own: Structure, values: dict[str, int]) -> Structure:
    """Return the structure with these sizes: the query heads of a key-value head stay or go with it."""
    groups = own.heads // max(1, own.kv_heads)
    heads = values.get("kv_heads", own.kv_heads) * groups
    return own.model_copy(update={**values, "heads": heads})


def _grown(model: ModelFacts, structure: Structure, recipe: Recipe, reaches: Callable[[Structure], bool]) -> Structure:
    """Return a narrower structure with parts one multiple wider where the target is reached all the same: neurons
    first."""
    own, largest = structure_of(model), structure
    steps = {
        "intermediate": multiple(own.intermediate, recipe),
        "kv_heads": 1,
        "hidden": multiple(own.hidden, recipe),
    }
    for name, size in steps.items():
        values = {part: getattr(largest, part) for part in steps} | {name: getattr(largest, name) + size}
        grown = _with_groups(own, values)
        if values[name] <= getattr(own, name) and reaches(grown):
            largest = grown
    return largest


def kernel_multiple(size: int) -> int:
    """Return the largest of the kernels' multiples that divides a size; for others the power of two that does."""
    return next((number for number in KERNEL_MULTIPLES if size % number == 0), math.gcd(size, 32))


def multiple(size: int, recipe: Recipe) -> int:
    """Return the multiple that a narrower size is rounded to: the kernels', the group of the quantization that
    follows, and the super-blocks of a GGUF file, where they divide the original."""
    step, usual = recipe.step("quantize"), kernel_multiple(size)
    if not isinstance(step, Quantize):
        return usual
    if step.method == GGUF:
        blocks = quantize_step.gguf_type(step).block
        return math.lcm(usual, blocks) if size % math.lcm(usual, blocks) == 0 else usual
    group = quantize_step.group_size(step) if step.method in GROUP_SIZE else None
    return math.lcm(usual, group) if group and size % math.lcm(usual, group) == 0 else usual


def cut_model(model: ModelFacts, structure: Structure) -> ModelFacts:
    """Return the facts of the model with those sizes, stored in 16 bit. Its id stays: it is the same model, smaller."""
    own = structure_of(model)
    changed: dict[str, Any] = {
        "layers": structure.layers,
        "intermediate_size": structure.intermediate,
        "heads": structure.heads,
        "kv_heads": structure.kv_heads,
        "hidden_size": structure.hidden,
        "experts": structure.experts,
    }
    # 1. Matrices by their shapes; experts that are counted apart by their own share.
    shaped = model.model_copy(update=changed)
    parts, depth = sizes(model), structure.layers / own.layers
    before = sum(matrix.parameters for matrix in linears(model))
    after = sum(matrix.parameters for matrix in linears(shaped))
    matrices = parts.linears * structure.layers * after // max(1, own.layers * before)
    experts = model.expert_parameters
    if experts is not None and structure.experts is not None and own.experts and structure.layers == own.layers:
        left = experts * structure.experts // own.experts
        matrices, experts = parts.linears - experts + left, left
    # 2. Norms, biases and routers go with the layers and the hidden state; the last norm is of no layer.
    inside = max(0, parts.other - model.outside_parameters)
    router = min(inside, own.layers * own.hidden * own.experts) if own.experts else 0
    last = min(inside - router, own.hidden)
    norms = (inside - router - last) * structure.layers // own.layers + last
    routed = router * structure.layers * (structure.experts or 0) // max(1, own.layers * (own.experts or 0))
    other = (norms + routed) * structure.hidden // own.hidden + model.outside_parameters
    # 3. Embedding and output head.
    tables = (parts.embedding + parts.head) * structure.hidden // own.hidden
    parameters = matrices + other + tables
    changed |= {
        "parameters": parameters,
        "expert_parameters": None if experts is None else round(experts * depth),
        "experts_per_token": min(model.experts_per_token, structure.experts)
        if model.experts_per_token and structure.experts
        else model.experts_per_token,
        "kv_layers": None if model.kv_layers is None else round(model.kv_layers * depth),
        "sliding_layers": round(model.sliding_layers * depth),
        "quantization": None,
        "quantization_bits": None,
        "dtype": "float16" if model.dtype == "float16" else "bfloat16",
        "gguf_kept": False,
        "gguf_bytes": 0,
    }
    if isinstance(model, ModelCard):
        changed |= {"weights_bytes": 2 * parameters, "stored": None, "bytes_by_dtype": {}}
    return model.model_copy(update=changed)


def problem(model: ModelFacts, recipe: Recipe) -> str | None:
    """Return why no structure reaches the step's target, with the nearest that one reaches; None where one does."""
    step = find_step(recipe)
    if step is None or find_structure(model, recipe).reached:
        return None
    name, value = target(step)
    written = f"`{name}: {value:.15g}`"
    if not list_structures(model, recipe):
        return f"{written} cannot be reached: {model.id} has no sizes that `method: {step.method}` could lower."
    smallest, nearest = find_structure(model, recipe).structure, getattr(reachable(model, recipe), name)
    edge = "or more" if name == "max_bytes" else "or less"
    return f"{written} is beyond {words(smallest, step)}, the least of {model.id}: use `{name}: {nearest:.15g}` {edge}."


def reachable(model: ModelFacts, recipe: Recipe) -> Prune:
    """Return the recipe's structured pruning with the nearest target that a structure reaches."""
    step = find_step(recipe)
    if step is None:
        raise ValueError("the recipe has no structured pruning")
    search = find_structure(model, recipe)
    if search.reached or not list_structures(model, recipe):
        return step
    _, rest = apply(model, recipe)
    name, _ = target(step)
    furthest = measure(model, cut_model(model, search.structure), rest, name)
    if name == "max_bytes":
        return step.model_copy(update={name: math.ceil(-furthest)})
    return step.model_copy(update={name: max(0.01, math.floor(100 * furthest) / 100)})


def words(structure: Structure, step: Prune) -> str:
    """Return the sizes that the step changes: `1 layer`, `128 neurons and 3 heads`, `2 experts`."""
    if step.method == "depth":
        return f"{structure.layers} layer{'s' * (structure.layers != 1)}"
    if step.method == "experts":
        return f"{structure.experts} experts"
    parts = (step.parts or "mlp").split("+")
    named = [f"{structure.intermediate:,} neurons"]
    if "heads" in parts:
        named.append(f"{structure.heads} heads")
    if "hidden" in parts:
        named.append(f"{structure.hidden:,} channels")
    return " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))


def removal_sentence(record: Mapping[str, Any]) -> str:
    """Return what a job removed, by the manifest's record `structure`: sizes, and the layers or experts that went."""
    before, after = record["before"], record["after"]
    names = {
        "layers": "layers",
        "intermediate": "neurons",
        "heads": "heads",
        "hidden": "channels",
        "experts": "experts",
    }
    changed = [
        f"{before[name]:,} to {after[name]:,} {words}"
        for name, words in names.items()
        if name in before and before[name] != after[name]
    ]
    where = " in every layer" if record["method"] != "depth" else ""
    if record["removed"]:
        numbers = ", ".join(map(str, record["removed"]))
        where = f"; the removed ones, counted from 0, are {numbers}"
    return f"From {' and '.join(changed)}{where}. It took {record['seconds']:,.0f} s."


def sentence(model: ModelFacts, recipe: Recipe) -> str | None:
    """Return what becomes of the model, as a plan says it: sizes, and the shares of time and parameters that go."""
    step = find_step(recipe)
    if step is None:
        return None
    structure = find_structure(model, recipe).structure
    smaller = cut_model(model, structure)
    time, parameters = (100 * measure(model, smaller, recipe, name) for name in TARGETS[:2])
    before, after = words(structure_of(model), step), words(structure, step)
    left = f"{figure(smaller.parameters / 1e6)} of {figure(model.parameters / 1e6)} million parameters stay"
    removed = f"{figure(time)} % of the layers' time and {figure(parameters)} % of the parameters are removed"
    return f"From {before} to {after}: {removed}, and {left}. Any engine serves the result as a smaller dense model."
