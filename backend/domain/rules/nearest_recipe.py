"""Finds the nearest valid recipe to one that is refused: the smallest change first, tried against the rules themselves.

A change is a corrected option, a step replaced by a similar one, a step left out, or one added; they are tried in order
of cost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from backend.domain.machine.targets import target_name
from backend.domain.model import shapes
from backend.domain.model.facts import ModelFacts
from backend.domain.model.gguf import file_types
from backend.domain.needs import recovery_needs, structure
from backend.domain.needs import serving_memory as memory
from backend.domain.recipe import methods, quantize_step
from backend.domain.recipe.capability_table import BFLOAT16, FP8_CACHE
from backend.domain.recipe.recipe import TECHNIQUES, Compile, Prune, Quantize, Recipe, Serving, Speculate, Step
from backend.domain.rules import (
    gguf_rules,
    kernel_rules,
    method_rules,
    neuron_rules,
    rotation_rules,
    rules,
    speculation_rules,
    structure_rules,
)
from backend.domain.rules.target_facts import TargetFacts

LIKE = {name: method.alternatives for name, method in methods.QUANTIZE.items()} | {
    "llm-int8": ("smoothquant", "w8a8", "fp8"),
    "kvquant": ("kv_cache", "fp8"),
}
"""Alternatives to a quantization method, the nearest first."""
EXCHANGED, ADDED, LEFT_OUT = 2, 3, 4
"""Costs of a change; options set right are free, a smaller group costs 1."""
NO_GGUF = {"prune", "compile"}
SMALLER_GROUPS = shapes.GROUP_SIZES[1:]

StepChoice = tuple[int, Any]
"""(cost, a step or None)."""


def find_nearest(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> tuple[Recipe | None, str | None]:
    """Return (recipe, None), (a recipe for another target, that target's name), or (None, None) where nothing is known
    to work.
    """
    if facts.place == "neuron":
        recipes = neuron_rules.candidates(model, recipe, facts)
        return next((c for c in recipes if not rules.reasons(model, c, facts)), None), None
    if facts.place != "managed" and facts.hardware == "neuron":
        return _managed_instead(model, recipe, facts)
    every = itertools.chain(_after_sparse(model, recipe, facts), candidates(model, recipe, facts))
    return next((c for c in every if not rules.reasons(model, c, facts)), None), None


def _after_sparse(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Recipe]:
    """Yield the recipe with quantization in the place of 2:4, where a GPU is to serve it."""
    refused = next(iter(method_rules.check_sparse_serving(model, recipe, facts)), None)
    if refused is None or facts.place == "managed":
        return
    remaining = tuple(step for step in recipe.steps if not isinstance(step, Prune))
    follower = method_rules.find_sparse_follower(model, facts)
    if recipe.step("quantize") is None and follower is not None:
        remaining = (Quantize(method=follower), *remaining)
    yield recipe.model_copy(update={"steps": remaining})


def _managed_instead(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> tuple[Recipe | None, str | None]:
    if facts.instance is None:
        return None, None
    there = facts.model_copy(update={"place": "managed"})
    suggestion, _ = find_nearest(model, recipe.model_copy(update={"steps": (Compile(),)}), there)
    return (suggestion, target_name("sagemaker", facts.instance)) if suggestion else (None, None)


def candidates(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Recipe]:
    """Yield every change of the recipe that could make it valid, cheapest first; the original last."""
    recipe = _mend_minutes(model, _mend_structure(model, recipe), facts)
    serving = _mend_serving(model, recipe, facts)
    smaller, _ = structure.apply(model, recipe)
    recipe = rotation_rules.mend(smaller, recipe, facts)
    steps_by_technique: dict[str, Any] = {
        step.technique: _mend_step(smaller, step, facts) for step in reversed(recipe.steps)
    }
    if gguf_rules.find_step(recipe) is not None:  # a GGUF file goes with neither
        cut = {"prune"} if structure.find_step(recipe) else set()
        dropped = NO_GGUF - cut
        steps_by_technique = {name: steps_by_technique[name] for name in steps_by_technique if name not in dropped}
    choices = [list(_choices(technique, steps_by_technique.get(technique))) for technique in TECHNIQUES]
    for _, steps in sorted((_cost(row) for row in itertools.product(*choices)), key=lambda pair: pair[0]):
        mended = _mend_limits(recipe.model_copy(update={"steps": steps, "serving": serving}), facts)
        if gguf_rules.find_step(recipe) is not None and gguf_rules.find_step(mended) is None:
            mended = mended.model_copy(update={"serving": Serving()})  # what takes its place is safetensors
        yield mended
        if any(step.technique == "shard" for step in steps) and facts.device is not None and facts.device.units > 1:
            for degree in memory.degrees(model, mended, facts.device)[1:]:
                yield mended.model_copy(update={"serving": serving.model_copy(update={"tensor_parallel": degree})})


def _cost(row: tuple[StepChoice, ...]) -> tuple[int, tuple[Any, ...]]:
    return sum(cost for cost, _ in row), tuple(step for _, step in row if step is not None)


def _choices(technique: str, step: Any) -> Iterator[StepChoice]:
    # 1. Without a step: none, or one that makes the recipe useful.
    if step is None:
        yield 0, None
        if technique == "quantize":
            yield from ((ADDED, Quantize(method=method)) for method in ("awq", "w8a8", "fp8"))
            yield from ((ADDED + 1, Quantize(method="awq", group_size=size)) for size in SMALLER_GROUPS)
        if technique == "compile":
            yield ADDED, Compile()
        return
    # 2. The step as it is, changed, and left out.
    yield 0, step
    if isinstance(step, Quantize):
        yield from _quantize_choices(step)
    if isinstance(step, Prune) and step.engine != "native":
        yield 1, step.model_copy(update={"engine": "native"})
    if isinstance(step, Prune) and step.recover:
        yield 1, step.model_copy(update={"recover": None})
    if isinstance(step, Speculate):
        if step.method == "draft":
            yield 1, step.model_copy(update={"heterogeneous_vocab": not step.heterogeneous_vocab})
        yield from ((EXCHANGED, Speculate(method=method, tokens=step.tokens)) for method in ("ngram", "draft"))
    yield LEFT_OUT, None


def _quantize_choices(step: Quantize) -> Iterator[StepChoice]:
    if step.engine != "native":
        yield 1, step.model_copy(update={"engine": "native"})
    if step.recover:
        yield 1, step.model_copy(update={"recover": None})
    group = quantize_step.group_size(step)
    if group is not None:
        for size in shapes.groups_by_distance(group):
            if size != group:
                yield 1, step.model_copy(update={"group_size": size, "engine": "native"})
    if step.method == methods.GGUF:
        yield from ((1, step.model_copy(update={"type": name})) for name in file_types.TYPES)
    yield from ((EXCHANGED, Quantize(method=method)) for method in LIKE[step.method])
    yield from ((EXCHANGED + 1, Quantize(method="awq", group_size=size)) for size in SMALLER_GROUPS)


def _mend_serving(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Serving:
    serving = recipe.serving
    changes = _mend_serving_types(recipe, facts)
    # 1. Options that contradict the model, the recipe or the engine.
    if serving.max_model_len and serving.max_model_len > model.max_positions:
        changes["max_model_len"] = model.max_positions
    if recipe.step("compile"):
        changes["enforce_eager"] = False
    broken = {reason.rule for reason in rules.reasons(model, recipe, facts)}
    if "serving-engine" in broken:
        changes |= {"engine": "vllm", "threads": None, "batch_threads": None, "device": None, "kv_cache_dtype": "auto"}
        if gguf_rules.find_step(recipe) is not None:
            changes = {"engine": "llama.cpp", "device": None, "kv_cache_dtype": "auto", "tensor_parallel": 1}
    if "threads" in broken:
        changes |= {"threads": None, "batch_threads": None}
    if "tensor-parallel" in broken:
        changes["tensor_parallel"] = 1
    # 2. Memory, which another reason may have hidden.
    so_far = recipe.model_copy(update={"serving": serving.model_copy(update=changes)})
    if any(reason.rule == "memory" for reason in rules.reasons(model, so_far, facts)):
        if serving.max_model_len:
            changes["max_model_len"] = min(serving.max_model_len, memory.usual_context(model))
        if serving.dtype == "float32":
            changes["dtype"] = "auto"
    return serving.model_copy(update=changes) if changes else serving


def _mend_serving_types(recipe: Recipe, facts: TargetFacts) -> dict[str, Any]:
    """Return changes to types that the hardware does not have."""
    serving, changes = recipe.serving, dict[str, Any]()
    has = facts.device.capability if facts.device else None
    if has is not None and serving.dtype == "bfloat16" and has < BFLOAT16[0]:
        changes["dtype"] = "auto"
    if serving.dtype == "float32" and facts.hardware == "cuda" and recipe.step("quantize"):
        changes["dtype"] = "auto"
    if has is not None and serving.kv_cache_dtype == "fp8" and has < FP8_CACHE[0]:
        changes["kv_cache_dtype"] = "auto"
    return changes


def _mend_minutes(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Recipe:
    """Return the recipe with minutes of recovery that are enough for a first result."""
    steps: list[Any] = []
    for step in recipe.steps:
        recover = step.recover if isinstance(step, Prune | Quantize) else None
        if recover is None or recover.minutes is None:
            steps.append(step)
            continue
        least = math.ceil(recovery_needs.least_minutes(model, recipe, facts.device, recover))
        longer = recover.model_copy(update={"minutes": max(least, recover.minutes)})
        steps.append(step.model_copy(update={"recover": longer}))
    return recipe.model_copy(update={"steps": tuple(steps)})


def _mend_structure(model: ModelFacts, recipe: Recipe) -> Recipe:
    """Return the recipe with a structured pruning that the model takes, to the nearest target that is reached."""
    mended = structure_rules.mend_step(model, recipe)
    if mended is None:
        return recipe
    steps = tuple(mended if isinstance(step, Prune) and step.structured else step for step in recipe.steps)
    return recipe.model_copy(update={"steps": steps})


def _mend_limits(recipe: Recipe, facts: TargetFacts) -> Recipe:
    """Return the recipe without a fall-back that cannot work."""
    limits, step = recipe.limits, recipe.step("quantize")
    floor = limits.max_kl is not None or limits.max_perplexity_increase is not None
    raised = isinstance(step, Quantize) and step.method != "kv_cache" and step.engine == "native"
    if not limits.fall_back or (floor and raised and facts.place != "managed"):
        return recipe
    return recipe.model_copy(update={"limits": limits.model_copy(update={"fall_back": False})})


def _mend_step(model: ModelFacts, step: Any, facts: TargetFacts) -> Any:
    if isinstance(step, Compile):
        return Compile()
    if isinstance(step, Prune):
        return step if step.pattern == "unstructured" else step.model_copy(update={"sparsity": 0.5})
    if isinstance(step, Speculate):
        return speculation_rules.mend_step(step, facts)
    return _mend_quantize(model, step, facts) if isinstance(step, Quantize) else step


def _mend_quantize(model: ModelFacts, step: Quantize, facts: TargetFacts) -> Quantize:
    in_groups = step.method in methods.GROUP_SIZE
    # 1. Options that the method, the model or the target does not take.
    dense_alone = {"loss_weights"} if model.experts else set()
    fitting = quantize_step.method_row(step).defaults.keys() - dense_alone
    foreign = [name for name in methods.TUNED if name not in fitting]
    changes: dict[str, Any] = dict.fromkeys(foreign)
    if not model.experts or facts.place == "managed" or step.outside_experts == step.method:
        changes["outside_experts"] = None
    if model.model_type in methods.NO_CACHE_SCALES:
        changes["kv_cache"] = None
    if step.format == "autoawq" and (not in_groups or quantize_step.bits(step) != 4 or step.kv_cache):
        changes["format"] = "compressed-tensors"
    if step.method not in methods.MIXABLE or facts.place == "managed":
        changes |= dict.fromkeys(methods.MIXED)
    if not in_groups:
        return step.model_copy(update=changes | {"bits": None, "group_size": None, "symmetric": None})
    # 2. A group size that divides every matrix.
    changes["group_size"] = _dividing_group(model, step)
    if step.bits not in quantize_step.method_row(step).bits:
        changes["bits"] = None
    if step.bits == 8 or quantize_step.method_row(step).zero_points is not None:
        changes["symmetric"] = None
    mended = step.model_copy(update=changes)
    # 3. Several precisions: a served 8-bit form, and an average that can be reached.
    unbuilt = mended.eight_bits is not None and not _served(mended.eight_bits, model, facts)
    if quantize_step.bits(mended) == 8 or mended.target_bits is None or unbuilt:
        mended = mended.model_copy(update={"eight_bits": None})
    if mended.target_bits is None:
        return mended
    inside = min(max(mended.target_bits, quantize_step.lowest_average(mended)), float(methods.ORIGINAL_BITS))
    return mended.model_copy(update={"target_bits": inside, "engine": "native", "format": "compressed-tensors"})


def with_dividing_group(model: ModelFacts, recipe: Recipe) -> Recipe:
    """Return the recipe with the largest usual group size that divides every matrix of the model, where its own does
    not: for lists of techniques, which ask whether one works and not with which options."""
    steps: list[Step] = []
    for step in recipe.steps:
        if isinstance(step, Quantize) and step.method in methods.GROUP_SIZE:
            steps.append(step.model_copy(update={"group_size": _dividing_group(model, step)}))
        else:
            steps.append(step)
    return recipe.model_copy(update={"steps": tuple(steps)})


def _dividing_group(model: ModelFacts, step: Quantize) -> int | None:
    """Return the step's own group size, or the largest usual one that divides where its own does not; None where none
    does."""
    undivided = shapes.undivided(step.group_size or methods.GROUP_SIZE[step.method], model)
    return shapes.usual_group(model) if undivided else step.group_size


def _served(method: str, model: ModelFacts, facts: TargetFacts) -> bool:
    """Return whether the method by itself has a kernel there."""
    alone = Recipe(steps=(Quantize(method=method),))
    return not any(reason.rule == "compute-capability" for reason in kernel_rules.check_kernels(model, alone, facts))
