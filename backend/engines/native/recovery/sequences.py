"""The sequences of a training: which are learned from, which only validate, and the order in which they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from backend.domain.errors import InvalidWorkload
from backend.domain.figures import counted
from backend.domain.recipe.recovery import MOST_VALIDATION, SPARE_SEQUENCES

if TYPE_CHECKING:
    import torch

VALIDATION_SHARE = 2
"""One in so many of the sequences that calibration did not see only validates."""


class Split(NamedTuple):
    """The sequences to learn from and those to validate on, [sequences, length] each, none in both."""

    training: torch.Tensor
    validation: torch.Tensor


def split_data(calibrated: torch.Tensor, spare: torch.Tensor) -> Split:
    """Split the sequences, [sequences, length] each. Half of `spare`, which is in random order, validates, at most
    MOST_VALIDATION; the rest of it and all that `calibrated` are learned from.

    Raises InvalidWorkload if the spare ones are too few.
    """
    import torch

    if len(spare) < SPARE_SEQUENCES:
        raise InvalidWorkload(
            f"The calibration text leaves {counted(len(spare), 'sequence')} of {spare.shape[1]} tokens to recover "
            f"with, fewer than {SPARE_SEQUENCES}: give more text, or fewer `samples` or a smaller `length` in the "
            "quantize step."
        )
    validating = min(MOST_VALIDATION, len(spare) // VALIDATION_SHARE)
    return Split(torch.cat([spare[validating:], calibrated]), spare[:validating])


def sequence_numbers(count: int, step: int, size: int, seed: int) -> list[int]:
    """Choose `size` of `count` sequences for step `step` (from 0): epoch after epoch, each in an order of its own."""
    positions = [divmod(number, count) for number in range(step * size, (step + 1) * size)]
    orders = {epoch: order(count, seed * 1_000_003 + epoch) for epoch, _ in positions}
    return [orders[epoch][place] for epoch, place in positions]


def order(count: int, seed: int) -> list[int]:
    """Shuffle the numbers below `count`."""
    import torch

    return torch.randperm(count, generator=torch.Generator().manual_seed(seed % 2**63)).tolist()
