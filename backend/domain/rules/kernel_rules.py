"""The rule that a kernel of vLLM takes every quantized matrix as it is served, and the names of those kernels.

The conditions are in `domain/kernels`; here a recipe becomes the layouts that it stores, and a model the layers that
vLLM runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from backend.domain.kernels import table
from backend.domain.kernels.conditions import CHANNEL, Chip, Layer, StoredLayout
from backend.domain.kernels.kernel_choice import KernelChoice, choose_kernel, rounds_inputs
from backend.domain.model import shapes
from backend.domain.model.facts import ModelFacts
from backend.domain.recipe import methods, precision, quantize_step
from backend.domain.recipe.capability_table import BFLOAT16
from backend.domain.recipe.recipe import Quantize, Recipe
from backend.domain.rules.target_facts import Reason, TargetFacts

SCHEME_WORDS = {
    "int8": ("INT8", "W8A8"),
    "fp8": ("FP8", "W8A8"),
    "fp8-block": ("FP8", "W8A8 in blocks"),
    "mxfp8": ("MXFP8", "W8A8"),
    "nvfp4": ("NVFP4", "W4A4"),
    "mxfp4": ("MXFP4", "W4A4"),
    "w4a8-fp8": ("INT4", "W4A8 with FP8 inputs"),
}
"""Schemes with quantized activations: the numbers, and the product."""
RULES = {"compute-capability": "compute-capability", "group-size": "group-size"}
"""The rule that a condition belongs to; those that have none of their own are `kernel`."""
EVERY = frozenset({True, False})
NAMES = ("query, key and value", "output", "up", "down")
MULTIPLE = f"{table.VLLM}, kernels/linear/mixed_precision/cpu.py, CPUWNA16LinearKernel"


def check_kernels(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Yield a reason for each layout of the recipe that no kernel takes on that hardware."""
    # 1. Only our own servers take kernels of vLLM.
    step = recipe.step("quantize")
    if facts.place not in {"local", "planned"} or facts.hardware == "neuron" or not isinstance(step, Quantize):
        return
    parts = stored_parts(step, recipe, facts)
    if not parts:
        return
    # 2. Something must be quantized.
    layers = served_layers(model, step, recipe.serving.tensor_parallel)
    if not layers:
        sizes = (
            f"Every matrix of {model.id} has a size that is no multiple of {quantize_step.method_row(step).multiple}"
        )
        mend = f"use {' or '.join(nearest)}" if (nearest := _finer_methods(model, step)) else "leave the step out"
        message = f"{sizes}, so {step.method} would quantize nothing: {mend}."
        yield Reason(rule="kernel", message=message, source=MULTIPLE)
        return
    # 3. Each layout needs a kernel for every layer: report the first layer without one.
    for words, layout, which in parts:
        refusals = (find_refusal(layout, layer, model, recipe, facts) for layer in layers if layer.experts in which)
        failed = next((refusal for refusal in refusals if refusal is not None), None)
        if failed is None or failed.unmet is None:
            continue
        why = f"{failed.title} {failed.unmet.words}"
        remedy = _remedy(failed.unmet.condition, model, recipe, facts)
        yield Reason(
            rule=RULES.get(failed.unmet.condition, "kernel"),
            message=f"vLLM has no kernel for {words} on {facts.where}, since {why}: {remedy}.",
            source=failed.source,
            brief=why,
        )


def find_refusal(
    layout: StoredLayout, layer: Layer, model: ModelFacts, recipe: Recipe, facts: TargetFacts
) -> KernelChoice | None:
    """Return the kernel choice that fails for the layer; None where a kernel takes it.

    An artifact that is made on a processor may be for a GPU, which `quantize_step.unserved_reason` says: there only a
    group size that the processor's kernel does not take refuses the recipe.
    """
    choice = choose_kernel(layout, layer, chip(model, recipe, facts))
    if choice.unmet is None:
        return None
    if facts.hardware == "cpu" and (choice.unmet.condition != "group-size" or layer.experts):
        return None
    return choice


def find_unserved(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> str | None:
    """Return why vLLM cannot serve there what the recipe stores, without a full stop; None where it can.

    Experts on a processor are left to `quantize_step.unserved_reason`.
    """
    step = recipe.step("quantize")
    if not isinstance(step, Quantize) or facts.hardware == "neuron":
        return None
    here = chip(model, recipe, facts)
    for words, layout, which in stored_parts(step, recipe, facts):
        for layer in served_layers(model, step, recipe.serving.tensor_parallel):
            if layer.experts not in which:
                continue
            choice = choose_kernel(layout, layer, here)
            if choice.unmet is not None and not (layer.experts and here.hardware == "cpu"):
                return f"vLLM has no kernel for {words} there, since {choice.title} {choice.unmet.words}"
    return None


def find_unserved_format(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> str | None:
    """Return why nothing serves there what the recipe can still make, without a full stop; None where it is served."""
    unserved = quantize_step.unserved_reason(
        recipe.step("quantize"),
        facts.hardware,
        model_type=model.model_type,
        experts=bool(model.experts),
        features=facts.features,
    )
    return unserved[0] if unserved else None


def chip(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Chip:
    """Return the hardware as the kernels see it, with the type of the inputs that vLLM chooses."""
    capability = facts.device.capability if facts.device else None
    dtype = recipe.serving.dtype if recipe.serving.dtype != "auto" else model.dtype
    old = facts.hardware == "cuda" and capability is not None and capability < BFLOAT16[0]
    if recipe.serving.dtype == "auto" and (dtype not in table.HALF or old):
        dtype = "float16" if old else "bfloat16"
    inputs: Literal["float16", "bfloat16", "float32"] = "bfloat16"
    if dtype == "float16":
        inputs = "float16"
    elif dtype == "float32":
        inputs = "float32"
    return Chip("cuda" if facts.hardware == "cuda" else "cpu", capability, inputs, frozenset(facts.features or ()))


class StoredPart(NamedTuple):
    """A layout that a recipe stores: its words, and whether experts, other linears or both get it."""

    words: str
    layout: StoredLayout
    experts: frozenset[bool] = EVERY


def stored_parts(step: Quantize, recipe: Recipe, facts: TargetFacts) -> list[StoredPart]:
    """Return what the step stores.

    Its own layout, then those that linears outside of experts or groups of linears may get instead.
    """
    if quantize_step.method_row(step).scheme is None:
        return []
    # 1. The step's own, and that outside of experts.
    own = stored_layout(step)
    words = f"{step.method} in {own.scales}" if own.scheme == "wNa16" else step.method
    if step.outside_experts is not None:
        outside = quantize_step.outside_step(step)
        parts = [StoredPart(words, own, frozenset({True}))]
        if outside is not None:
            parts.append(StoredPart(f"{outside.method} outside of experts", stored_layout(outside), frozenset({False})))
        return parts
    every = [StoredPart(words, own)]
    # 2. Those of other precisions.
    if step.target_bits is None and not recipe.limits.fall_back:
        return every
    eight: precision.EightBitForm = step.eight_bits or ("w8a8" if facts.hardware == "cpu" else "int8")
    for candidate in precision.candidates(quantize_step.engine_options(step), eight)[1:]:
        if candidate.method is not None:
            stored = _layout(candidate.method, candidate.bits, candidate.group_size, candidate.symmetric)
            every.append(StoredPart(candidate.words, stored))
    return every


def stored_layout(step: Quantize) -> StoredLayout:
    """Return the step's own layout. AutoAWQ's format always has zero points."""
    own = _layout(step.method, quantize_step.bits(step), quantize_step.group_size(step), quantize_step.symmetric(step))
    own = own._replace(activations=quantize_step.option_value(step, "activations") or own.activations)
    if step.format == "autoawq" or step.engine == "autoawq":
        return own._replace(format="autoawq", zero_points=True)
    return own


def _layout(method: str, bits: int, group: int | None, symmetric: bool) -> StoredLayout:
    known = methods.QUANTIZE[method]
    assert known.scheme is not None
    activations: Literal["dynamic", "none"] = "dynamic" if known.activations else "none"
    fixed = known.fixed_group if known.scheme != "fp8-block" else None
    zero_points = known.scheme == "wNa16" and not symmetric
    return StoredLayout(known.scheme, bits, group or fixed or CHANNEL, zero_points, activations)


def served_layers(model: ModelFacts, step: Quantize, degree: int) -> tuple[Layer, ...]:
    """Return the quantized matrices as vLLM has them on each of `degree` devices.

    The native engine leaves matrices 16-bit that a processor's kernel could not take; the libraries quantize all.
    """
    whole, cut = shapes.fused(model), shapes.fused(model, degree)
    layers: list[Layer] = []
    for name, before, after in zip(NAMES, whole, cut, strict=True):
        experts = bool(model.experts) and name in {"up", "down"}
        own = step if experts else quantize_step.outside_step(step) or step
        if step.engine == "native" and not is_quantized(before, own):
            continue
        outputs = sum(shape.outputs * (1 if experts else shape.copies) for shape in after)
        parts = [
            shape.outputs for shape in after for _ in range(shape.copies // (model.experts or 1 if experts else 1))
        ]
        layers.append(Layer(name, after[0].inputs, outputs, before[0].inputs, experts, tuple(parts)))
    down = [layer for layer in layers if layer.experts and layer.name == "down"]
    dense = tuple(layer for layer in layers if not layer.experts)
    # Experts are one layer in vLLM: the width between their matrices, and the model's width.
    return (*dense, *(layer._replace(name="experts'") for layer in down))


def is_quantized(matrices: tuple[shapes.Linear, ...], step: Quantize) -> bool:
    """Return whether the native engine quantizes matrices that vLLM fuses into one.

    All their sizes are multiples of what the method needs.
    """
    multiple = quantize_step.method_row(step).multiple
    return all(size % multiple == 0 for shape in matrices for size in (shape.inputs, shape.outputs))


def _finer_methods(model: ModelFacts, step: Quantize) -> list[str]:
    """Return the methods of a format like the step's that quantize something of the model."""
    alternatives = [step.model_copy(update={"method": name}) for name in quantize_step.method_row(step).alternatives]
    return [
        f"`{other.method}`"
        for other in alternatives
        if any(is_quantized(matrices, other) for matrices in shapes.fused(model))
    ][:2]


def unquantized_matrices(model: ModelFacts, step: Quantize) -> list[str]:
    """Return the names of the matrices that stay 16-bit."""
    if step.engine != "native" or quantize_step.method_row(step).scheme is None:
        return []
    unquantized = []
    for name, matrices in zip(NAMES, shapes.fused(model), strict=True):
        experts = bool(model.experts) and name in {"up", "down"}
        own = step if experts else quantize_step.outside_step(step) or step
        if not is_quantized(matrices, own) and (experts or step.outside_experts != methods.SIXTEEN_BIT):
            unquantized.append(name)
    return unquantized


def kernel_title(model: ModelFacts, recipe: Recipe, facts: TargetFacts, degree: int) -> str:
    """Return the kernel that serves the step's own layout, `weight-only INT4 (Marlin)`; empty where none does."""
    # 1. The words for the arithmetic; where the GPU is not known, nothing more can be said.
    step = recipe.step("quantize")
    if not isinstance(step, Quantize) or quantize_step.method_row(step).scheme is None or facts.hardware == "neuron":
        return ""
    layout, here = stored_layout(step), chip(model, recipe, facts)
    if here.hardware == "cpu" and find_unserved_format(model, recipe, facts) is not None:
        return ""
    what = _arithmetic_words(layout, here)
    if here.hardware == "cuda" and here.capability is None:
        return what
    # 2. The kernels of all layers; a layer without one is not served at all.
    choices = []
    every = stored_parts(step, recipe, facts)
    for part in every if step.outside_experts is not None else every[:1]:
        layers = [layer for layer in served_layers(model, step, degree) if layer.experts in part.experts]
        choices += [(layer, choose_kernel(part.layout, layer, here).kernel) for layer in layers]
    dense = list(dict.fromkeys(kernel.title for layer, kernel in choices if kernel and not layer.experts))
    experts = [kernel.title for layer, kernel in choices if kernel and layer.experts]
    if step.outside_experts is not None:
        return _split_title(step, what, dense, experts, here)
    if not dense or (model.experts and not experts):
        return ""
    names = " and ".join(dense) + (f"; experts: {experts[0]}" if experts else "")
    return f"{what} ({names})"


def _split_title(step: Quantize, what: str, dense: list[str], experts: list[str], here: Chip) -> str:
    """Return the kernels of a mixture whose experts and other linears differ: `experts: weight-only INT4 (Marlin)`."""
    if not experts:
        return ""
    outside = quantize_step.outside_step(step)
    others = ""
    if outside is not None and dense:
        others = f"; others: {_arithmetic_words(stored_layout(outside), here)} ({' and '.join(dense)})"
    return f"experts: {what} ({experts[0]}){others}"


def _arithmetic_words(layout: StoredLayout, here: Chip) -> str:
    if layout.scheme == "wNa16":
        return f"weight-only INT{layout.bits}"
    name, both = SCHEME_WORDS[layout.scheme]
    rounds = here.hardware == "cpu" or rounds_inputs(layout.scheme, here.capability)
    return f"{name} {both}" if rounds and layout.activations != "none" else f"weight-only {name}"


def is_processor_only(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> bool:
    """Return whether a processor serves groups that no GPU does."""
    step = recipe.step("quantize")
    if facts.hardware != "cpu" or not isinstance(step, Quantize) or quantize_step.group_size(step) is None:
        return False
    if quantize_step.method_row(step).scheme is None:
        return False
    layout, gpu = stored_layout(step), Chip("cuda", (8, 0))
    choices = [choose_kernel(layout, layer, gpu) for layer in served_layers(model, step, 1)]
    return any(choice.unmet is not None and choice.unmet.condition == "group-size" for choice in choices)


def nearest_group(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> int | None:
    """Return the usual group size nearest to the step's that divides every matrix and has a kernel.

    None where none has.
    """
    # 1. The stated size.
    step = recipe.step("quantize")
    stated = quantize_step.group_size(step) if isinstance(step, Quantize) else None
    if not isinstance(step, Quantize) or stated is None:
        return None
    # 2. Try the usual ones.
    for size in shapes.groups_by_distance(stated):
        changed = step.model_copy(update={"group_size": size})
        layers = served_layers(model, changed, recipe.serving.tensor_parallel)
        failed = any(find_refusal(stored_layout(changed), layer, model, recipe, facts) for layer in layers)
        if not failed and not shapes.undivided(size, model):
            return size
    return None


def _remedy(condition: str, model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> str:
    """Return what to change."""
    size = nearest_group(model, recipe, facts) if condition == "group-size" else None
    if size is not None:
        return f"use `group_size: {size}`"
    stated = recipe.serving.dtype != "auto"
    changes = {
        "dtype": "use `serving.dtype: auto`" if stated else "use `serving.dtype: bfloat16`",
        "activations": "leave `activations` out",
        "zero-points": "leave `symmetric` out",
    }
    return changes.get(condition) or _other_method(model, recipe, facts)


def _other_method(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> str:
    """Return the advice to use the nearest method that the target serves, or another GPU."""
    step = recipe.step("quantize")
    assert isinstance(step, Quantize)
    for name in quantize_step.method_row(step).alternatives:
        other = recipe.model_copy(update={"steps": (Quantize(method=name),)})
        if methods.QUANTIZE[name].scheme is not None and find_unserved(model, other, facts) is None:
            return f"use `{name}`, which is served there, or another GPU"
    return "use another method or another GPU"
