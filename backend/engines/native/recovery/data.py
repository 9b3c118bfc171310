"""Which sequences a recovery learns from, and which only tell it when to stop: of the calibration text, what calibrates nothing.

Token ids only. Knows no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from backend.domain.errors import InvalidWorkload
from backend.domain.recipe.recovery import MOST_VALIDATION, SPARE_SEQUENCES

if TYPE_CHECKING:
    import torch

VALIDATION_SHARE = 6
"""One sequence of so many validates."""


class Split(NamedTuple):
    """[sequences, length] each, none in both."""

    training: torch.Tensor
    validation: torch.Tensor


def split(spare: torch.Tensor) -> Split:
    """`spare` [sequences, length] in random order, parted. Raises InvalidWorkload where it is too little."""
    if len(spare) < SPARE_SEQUENCES:
        raise InvalidWorkload(
            f"The calibration text leaves {len(spare)} sequences of {spare.shape[1]} tokens to recover with, fewer than "
            f"{SPARE_SEQUENCES}: give more text, or fewer `samples` or a smaller `length` in the quantize step."
        )
    held = min(MOST_VALIDATION, len(spare) // VALIDATION_SHARE)
    return Split(spare[held:], spare[:held])


def batch(tokens: torch.Tensor, step: int, size: int, seed: int) -> torch.Tensor:
    """The sequences [size, length] of step `step` (from 0): epoch after epoch, each in an order of its own."""
    import torch

    places = range(step * size, (step + 1) * size)
    orders = {epoch: _order(len(tokens), seed, epoch) for epoch in {place // len(tokens) for place in places}}
    return tokens[torch.stack([orders[place // len(tokens)][place % len(tokens)] for place in places])]


def _order(count: int, seed: int, epoch: int) -> torch.Tensor:
    import torch

    return torch.randperm(count, generator=torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63))
