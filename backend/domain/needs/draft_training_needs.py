"""Estimates what the training of a draft needs: memory for its target, its parameters and the target's states; disk."""

from __future__ import annotations

from backend.domain.model.facts import ModelCard
from backend.domain.recipe.draft_training import Training

LEARNED_BYTES = 28
"""A parameter: weight, gradient and Adam's two moments in fp32, copies to save and to keep as the best, and one being
written."""
TOKENS_A_SECOND = 1500
"""Tokens of answers per second, for the states stored of them: more than any processor tried gave."""
ANSWERING = 0.45
"""Share of the time budget in which the target answers."""
KEPT_LAYERS = {"small": 1, "eagle3": 4, "medusa": 1}
"""Layers whose hidden states are stored in 16 bits, the last included."""
TARGET_BYTES = 4
"""A parameter of the target: fp32 where the processor only emulates 16 bits. The job may run on such a machine."""
ROWS, VALUES = 256, 24
"""Positions whose logits are in memory at once (some tens of megabytes, which a processor's cache still helps with),
and fp32 values a position and token of the vocabulary."""
MOST_PROMPT = 512
"""Tokens of a prompt that are used, its last."""
REST_BYTES = 1 << 30
"""Activations of a batch, and caches of the answers in progress."""


def parameters(model: ModelCard, options: Training) -> int:
    """Return about how many parameters are trained.

    An embedding of the vocabulary and two layers, at most of the target's width.
    """
    fresh = options.kind == "small" and options.start == "fresh"
    width = min(options.hidden or 256, model.hidden_size) if fresh else model.hidden_size
    return model.vocabulary * width + (options.layers or 2) * 12 * width**2


def memory_bytes(model: ModelCard, options: Training) -> int:
    """Return the peak memory in bytes, the runtime left out."""
    rows = 4 * ROWS * VALUES * model.vocabulary
    return (
        max(model.weights_bytes, TARGET_BYTES * model.parameters)
        + LEARNED_BYTES * parameters(model, options)
        + rows
        + _stored_bytes(model, options)
        + REST_BYTES
    )


def disk_bytes(model: ModelCard, options: Training) -> int:
    """Return the bytes on disk while it runs: what the target computed, the state, and the draft."""
    return _stored_bytes(model, options) + 20 * parameters(model, options)


def _stored_bytes(model: ModelCard, options: Training) -> int:
    tokens = int(60 * options.minutes * ANSWERING * TOKENS_A_SECOND)
    if options.answers is not None:
        tokens = options.answers * (options.answer_tokens + MOST_PROMPT)
    return 2 * KEPT_LAYERS[options.kind] * model.hidden_size * tokens
