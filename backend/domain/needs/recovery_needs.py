"""Estimates what recoveries need: memory for the whole model, operations, and disk for the results between its steps.

A recipe may have one after pruning and one after quantization. Pure arithmetic over the facts, with the formula in
words. Knows nothing of what else a job does.
"""

from __future__ import annotations

import math

from backend.domain.machine.device import Device
from backend.domain.model.facts import ModelFacts
from backend.domain.model.shapes import linears, sizes
from backend.domain.recipe.recipe import Prune, Quantize, Recipe
from backend.domain.recipe.recovery import (
    ANSWERED,
    BEGINNING,
    KEPT_SEQUENCES,
    MOST_STEPS,
    MOST_VALIDATION,
    TIMED_VALIDATIONS,
    VALIDATIONS,
    Recover,
    RecoverQuantized,
    Recovery,
)

SAMPLES, LENGTH = (int(Quantize.model_fields[name].default) for name in ("samples", "length"))
"""Sequences that calibrate, and tokens of one, where no quantize step says it."""
LAYER_VALUES = 12
"""fp32 values a token and layer that the backward pass needs, in widths of the hidden and intermediate states
together."""
VOCABULARY_VALUES = 6
"""fp32 values a token and vocabulary entry: both models' logits, their logarithms and the gradients."""
TRAINED_VALUES = 4
"""fp32 values per parameter of a factor: itself, its gradient and Adam's two moments."""
TRAINED_PASSES = 3
"""A forward and a backward pass, in forward passes; a teacher is one more."""
WRITTEN_PASSES = 1.6
"""Writing sequences token by token, in forward passes of them: 1.57 for 32 sequences of 256 tokens of
SmolLM2-135M-Instruct in fp32 on one core (AMD EPYC with AVX-512, torch 2.13, 2026-11-29)."""
GROUP_VALUES = 32
"""The fewest weights that share a scale."""
FORMULA = (
    "the whole model in fp32: 4 bytes a parameter, 5 more for each weight of a matrix pruned to zeros (its mask, and "
    "the sum with its adapter) or 4 for each quantized one (the product with its scale; 16 where it is learned), 4 "
    f"more a parameter for the teacher, its last states of {KEPT_SEQUENCES} sequences, and the activations and logits "
    "of one batch"
)
TIME_FORMULA = (
    "2 x parameters x tokens of two validations and one step / the rate of 16-bit operations; with `answers` also of "
    f"the first {ANSWERED} sequences, or where that is longer 4 bytes x parameters x tokens that are written of one "
    "sequence / the memory's bandwidth"
)


def find_recovery(recipe: Recipe) -> Recover | None:
    """Return the recipe's recovery after pruning; None if it has none."""
    step = recipe.step("prune")
    return step.recover if isinstance(step, Prune) else None


def find_quantized_recovery(recipe: Recipe) -> RecoverQuantized | None:
    """Return the recipe's recovery after quantization; None if it has none."""
    step = recipe.step("quantize")
    return step.recover if isinstance(step, Quantize) else None


def find_recoveries(recipe: Recipe) -> list[Recovery]:
    """Return the recoveries of the recipe, in their order."""
    steps: tuple[Recovery | None, ...] = (find_recovery(recipe), find_quantized_recovery(recipe))
    return [step for step in steps if step is not None]


def calibration_size(recipe: Recipe) -> tuple[int, int]:
    """Return (sequences that calibrate, tokens of one)."""
    step = recipe.step("quantize")
    return (step.samples, step.length) if isinstance(step, Quantize) else (SAMPLES, LENGTH)


def memory_bytes(model: ModelFacts, recipe: Recipe) -> int:
    """Return the peak bytes without the runtime; 0 without a recovery. `FORMULA` is the same in words."""
    return max((_memory_bytes(model, recipe, step) for step in find_recoveries(recipe)), default=0)


def _memory_bytes(model: ModelFacts, recipe: Recipe, step: Recovery) -> int:
    # 1. Both models, and what is learned with its gradients and moments.
    parts = sizes(model)
    weights = model.parameters * (8 if step.teacher else 4)
    if isinstance(step, Recover):
        copies = sum(shape.copies * (shape.inputs + shape.outputs) for shape in linears(model))
        pruning = recipe.step("prune")
        masked = not (isinstance(pruning, Prune) and pruning.structured)
        weights += 5 * parts.linears * masked + 4 * TRAINED_VALUES * copies * model.layers * step.rank
    else:
        trained = parts.linears if step.learn == "weights" else 0
        weights += 4 * parts.linears + 4 * (TRAINED_VALUES - 1) * trained
        weights += 4 * TRAINED_VALUES * parts.linears // GROUP_VALUES
    # 2. One batch on its way through the model and back.
    length, widths = calibration_size(recipe)[1], model.hidden_size + model.intermediate_size
    tokens, taught = step.batch * length, KEPT_SEQUENCES * length * model.hidden_size if step.teacher else 0
    activations = taught + tokens * (LAYER_VALUES * model.layers * widths + VOCABULARY_VALUES * model.vocabulary)
    return weights + 4 * activations


def operations(model: ModelFacts, recipe: Recipe, step: Recovery) -> tuple[float, float]:
    """Return the most operations in 16 bit and in fp32, with all steps made: 2 x parameters x tokens per forward
    pass. The model that learns runs in 16 bit; the original, validations and answers in fp32."""
    validations = VALIDATIONS if step.minutes is None else TIMED_VALIDATIONS
    half, full = _passes(step, step.steps, validations + 1)
    full += WRITTEN_PASSES * calibration_size(recipe)[0] if step.answers else 0
    return half * _pass_operations(model, recipe), full * _pass_operations(model, recipe)


def _passes(step: Recovery, steps: int, validations: int) -> tuple[float, float]:
    """Return the forward passes of a sequence in 16 bit and in fp32 that steps and validations take."""
    teacher, sequences = 1 if step.teacher else 0, steps * step.batch
    return sequences * TRAINED_PASSES, sequences * teacher + validations * MOST_VALIDATION * (1 + teacher)


def _pass_operations(model: ModelFacts, recipe: Recipe) -> float:
    """Return the operations of a forward pass of one sequence; writing it token by token takes no fewer."""
    parts = sizes(model)
    return 2.0 * (parts.active_linears + parts.embedding) * calibration_size(recipe)[1]


def seconds(model: ModelFacts, recipe: Recipe, half_rate: float, full_rate: float, step: Recovery | None) -> float:
    """Return the most seconds of a recovery at these operations a second in 16 bit and in fp32: all steps, or the
    minutes it may take; 0 for none."""
    if step is None:
        return 0.0
    half, full = operations(model, recipe, step)
    whole = half / half_rate + full / full_rate
    if step.minutes is None:
        return whole
    return 60.0 * step.minutes if step.steps == MOST_STEPS else min(whole, 60.0 * step.minutes)


def least_minutes(model: ModelFacts, recipe: Recipe, device: Device | None, step: Recovery) -> float:
    """Return the minutes until there is a first result to keep: the first answers where the original writes them, a
    validation, one step and another validation. `TIME_FORMULA` is the same in words; 0 where the device's rate is not
    known."""
    if device is None or not device.flops:
        return 0.0
    seconds = sum(_passes(step, 1, 2)) * _pass_operations(model, recipe) / device.flops
    if step.answers:
        samples, length = calibration_size(recipe)
        written = min(ANSWERED, samples) * _pass_operations(model, recipe) / device.flops
        read = 4.0 * model.parameters * (length - length // BEGINNING) / (device.bandwidth or math.inf)
        seconds += max(written, read)
    return seconds / 60


def memory_note(model: ModelFacts, recipe: Recipe) -> str:
    """Return the note of a plan."""
    needed = format_bytes(memory_bytes(model, recipe))
    return f"Recovery holds the whole model in memory, about {needed}; other steps read it layer by layer."


def format_bytes(value: float) -> str:
    """Return the bytes rounded, with a unit."""
    return f"{value / 1e6:,.0f} MB" if value < 1e9 else f"{value / 1e9:,.1f} GB"
