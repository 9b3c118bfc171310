"""Operations and memory of passes back through the layers: to learn how weights are rounded, and to weigh tokens by
the loss."""

from __future__ import annotations

from backend.domain.model.facts import ModelFacts
from backend.domain.model.shapes import sizes
from backend.domain.recipe import methods, quantize_step
from backend.domain.recipe.recipe import Quantize, Recipe

SEQUENCES, SEQUENCES_OF_FEW_BITS = 1, 4
"""Calibration sequences of a step that learns, with 4 bits and more, and with fewer. In 4 bits twice as many steps win
more than steps of twice as many sequences; in 3 bits they win the same, and take longer (docs/decisions/0068)."""
LEARNING_PASSES = 3
"""A step forward is one pass, and the one back is two: to what enters, and to the weights."""
TEXT_PASSES = 3
"""Passes of all sequences through a layer that learns: its error before and after, and what the next layer reads."""
LEARNING_VALUES = 0.3
"""Values a weight and step: it is rounded, and moves by the sign of its gradient. A step of a layer of SmolLM2-135M
took 58 ms on one core of an AMD EPYC with AVX-512; its products take 42 of them by the rate that is assumed here."""
LEARNING_COPIES = 6
"""Copies of a layer in fp32 beside it while it learns: weight, offsets, gradients, and what rounding keeps for them."""
WEIGHING_PASSES = 3
"""Tokens are weighed by a pass forward, and by one forward and one back through each layer."""


def sequences_per_step(bits: int) -> int:
    """Return the calibration sequences that a step reads where weights have so many bits."""
    return SEQUENCES if bits >= 4 else SEQUENCES_OF_FEW_BITS


def count_steps(recipe: Recipe) -> int:
    """Return the steps in which each layer learns; 0 where nothing is learned."""
    step = _find_step(recipe)
    return int(quantize_step.option_value(step, "learning_steps") or 0) if step is not None else 0


def weighs_tokens(recipe: Recipe) -> bool:
    """Return whether tokens are weighed by the loss."""
    step = _find_step(recipe)
    return step is not None and bool(quantize_step.option_value(step, "loss_weights"))


def learning_operations(model: ModelFacts, recipe: Recipe) -> float:
    """Return the operations in 16 bit, of all layers, while they learn."""
    step = _find_step(recipe)
    if step is None:
        return 0.0
    steps = count_steps(recipe)
    sequences = LEARNING_PASSES * min(sequences_per_step(quantize_step.bits(step)), step.samples) * steps
    sequences += TEXT_PASSES * step.samples if steps else 0
    return 2.0 * sizes(model).active_linears * sequences * step.length


def weighing_operations(model: ModelFacts, recipe: Recipe) -> tuple[float, float]:
    """Return the operations while tokens are weighed: (of all layers in 16 bit, of the output head in fp32)."""
    step = _find_step(recipe)
    if step is None or not weighs_tokens(recipe):
        return 0.0, 0.0
    tokens = 2.0 * WEIGHING_PASSES * step.samples * step.length
    return tokens * sizes(model).active_linears, tokens * model.vocabulary * model.hidden_size


def ranking_operations(model: ModelFacts, tokens: int) -> tuple[float, float]:
    """Return what `weighing_operations` does, for parts of a structured pruning that are ranked by gradients."""
    count = 2.0 * WEIGHING_PASSES * tokens
    return count * sizes(model).active_linears, count * model.vocabulary * model.hidden_size


def values(model: ModelFacts, recipe: Recipe) -> float:
    """Return the values that are read or written one by one."""
    return LEARNING_VALUES * sizes(model).linears * count_steps(recipe)


def layer_copies(recipe: Recipe) -> int:
    """Return the copies of a layer in fp32 that learning holds."""
    return LEARNING_COPIES if count_steps(recipe) else 0


def _find_step(recipe: Recipe) -> Quantize | None:
    """Return the native step of 4 or 8 bits in groups; None where there is none."""
    step = recipe.step("quantize")
    return step if isinstance(step, Quantize) and step.engine == "native" and step.method in methods.QUANTIZE else None
