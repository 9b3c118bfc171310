"""Memory of an optimize job that changes weights.

Of the engine, one decoder layer at a time, and of the scoring after it.

Pure arithmetic over the facts; bytes throughout. docs/decisions/0015 has measured peaks. Knows nothing of serving and
time.
"""

from __future__ import annotations

from backend.domain.model.facts import ModelFacts
from backend.domain.model.shapes import linears, sizes
from backend.domain.needs import gradient_passes, job_duration, structure
from backend.domain.recipe.recipe import Quantize, Recipe

PROCESS = 550_000_000
"""Memory of the libraries once they are imported and used: 450 MB and about 100 MB were measured."""
SCORED_ROWS, SCORED_LOGITS, SCORED_COPIES = (16, 512), 1 << 22, 3
"""Fewest and most positions that are scored at a time (with fewer, the head would be read from memory too often), their
logits over the whole vocabulary (16 MB a model), and blocks of them in fp32."""
MEASURED_ROWS, MEASURED_COPIES = 128, 6
"""Positions whose distributions are in double precision while groups are measured, and copies of them."""
COPIES = 6
"""Copies of a layer in fp32 while it is optimized: itself, pruned or scaled, rounded, packed, and what rounding needs
meanwhile. Measured 5.6 with 116 million parameters in three layers."""
BATCH_TOKENS = 2048
"""Tokens that go through a layer at a time on a processor."""
SPILL_BYTES = 2_000_000_000
"""Largest buffer of hidden states in memory; above this size both are in files."""
FORMULA = (
    "0.55 GB for the libraries + the largest of 6 fp32 copies of a decoder layer, a layer and what it computes for "
    "2,048 tokens, the embedding or the output head in fp32 + Gram matrices (for each input of the layer 4 bytes x "
    "inputs x inputs or calibration tokens, the fewer; 512 tokens where they decide nothing) + 2 x 4 bytes x "
    "calibration tokens x hidden size (at most 2 x 2 GB, else on disk; twice that where rounding is learned). Or "
    "scoring, where that is more: a layer, the output head in fp32 and blocks of logits; or, with an average of bits, "
    "the states and logits of all groups. A library engine: the whole model at its own width besides"
)


def peak_bytes(model: ModelFacts, recipe: Recipe, original: int) -> int:
    """Return the peak of the whole process. `original`: bytes of the stored weights, which a library engine loads."""
    step = recipe.step("quantize")
    library_bytes = original if isinstance(step, Quantize) and step.engine != "native" else 0
    buffers = 4 if gradient_passes.count_steps(recipe) else 2
    states = buffers * min(SPILL_BYTES, 4 * job_duration.calibration_tokens(recipe) * model.hidden_size)
    probing = isinstance(step, Quantize) and (step.target_bits is not None or recipe.limits.fall_back)
    measuring = _sensitivity_bytes(model) if probing else 0
    ranking = structure.find_step(recipe)
    if ranking is not None and ranking.importance == "loss":  # a copy of the windows without each layer
        tokens = (1 + model.layers) * job_duration.LOSS_WINDOWS * job_duration.WINDOW_TOKENS
        states = max(states, 2 * min(SPILL_BYTES, 4 * tokens * model.hidden_size))
    return PROCESS + max(device_bytes(model, recipe) + states + library_bytes, _scoring_bytes(model), measuring)


def device_bytes(model: ModelFacts, recipe: Recipe) -> int:
    """Return the memory on the device that works on a layer: the accelerator where there is one."""
    parts = sizes(model)
    layer = 4 * parts.linears // max(model.layers, 1)
    wide = 4 * model.hidden_size + 3 * model.intermediate_size
    copies = COPIES + gradient_passes.layer_copies(recipe)
    largest = max(copies * layer, layer + 4 * BATCH_TOKENS * wide, 4 * max(parts.embedding, parts.head))
    return largest + _gram_bytes(model, job_duration.error_tokens(recipe))


def scored_rows(vocabulary: int) -> int:
    """Return the positions that are scored at a time."""
    fewest, most = SCORED_ROWS
    return max(fewest, min(most, SCORED_LOGITS // vocabulary))


def _scoring_bytes(model: ModelFacts) -> int:
    layer = 4 * sizes(model).linears // max(model.layers, 1)
    head = 4 * model.vocabulary * model.hidden_size
    return layer + head + SCORED_COPIES * 4 * scored_rows(model.vocabulary) * model.vocabulary


def _sensitivity_bytes(model: ModelFacts) -> int:
    """Return the states of all copies, twice, the head, two windows of logits and a block of distributions."""
    copies, windows = job_duration.sensitivity_copies(model)
    tokens = windows * job_duration.WINDOW_TOKENS
    states = 2 * min(SPILL_BYTES, 4 * (1 + copies) * tokens * model.hidden_size)
    logits = 2 * 4 * job_duration.WINDOW_TOKENS * model.vocabulary
    return states + logits + MEASURED_COPIES * 8 * MEASURED_ROWS * model.vocabulary + _scoring_bytes(model)


def _gram_bytes(model: ModelFacts, tokens: int) -> int:
    """Return the bytes of Gram matrices: linears that read the same input share one.

    An expert sees its part of the tokens.
    """
    total = 0
    for shape in linears(model):
        if shape.name == "key and value":
            continue  # they read what the queries read
        copies = (model.experts or 1) if shape.name == "down" else 1
        expert_tokens = tokens * (model.experts_per_token or 1) // (model.experts or 1) if copies > 1 else tokens
        total += 4 * copies * shape.inputs * min(shape.inputs, max(expert_tokens, 1))
    return total
