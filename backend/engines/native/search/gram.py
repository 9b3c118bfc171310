"""Sums up Gram matrices X'X of calibration tokens. Knows matrices only.

They are symmetric, so only blocks on and below the diagonal are made, by `add`, and mirrored once at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from backend.layered.products import has_int8

if TYPE_CHECKING:
    import torch

BLOCKS, SMALLEST = 16, 128
"""Blocks of columns that a matrix is made in, and the fewest columns that are worth a product of their own."""
PIECE, FEWEST = 2048, 512
"""Tokens that share their scales as integers, and the fewest that are made integers at all."""


def add(matrix: torch.Tensor, rows: torch.Tensor) -> None:
    """Add X'X of `rows` X [tokens, in] fp32 to the blocks of `matrix` [in, in] fp32 on and below its diagonal.

    On a processor that multiplies 8-bit integers itself it is the exact X'X of tokens rounded to 255 points a channel, which is
    positive semidefinite as GPTQ's inverse needs it. Rounding adds noise of s^2 / 12 to a channel, s its distance between points:
    0.01 % of the power of one whose largest value is 5 times its root mean square, 1 % at worst, where one token has it all. What
    GPTQ inverts has directions of far less power, in which this counts for more: docs/decisions/0012 has it of trained models.
    """
    for start in range(0, len(rows), PIECE):
        piece = rows[start : start + PIECE]
        if len(piece) >= FEWEST and has_int8(rows.device.type):
            _add_of_integers(matrix, piece)
            continue
        for block in _blocks(len(matrix)):
            matrix[block, : block.stop].addmm_(piece[:, block].T, piece[:, : block.stop])


def _add_of_integers(matrix: torch.Tensor, rows: torch.Tensor) -> None:
    """Sums of products of integers stay below 127^2 x PIECE, so int32 holds them."""
    import torch

    scale = torch.maximum(rows.amax(0), -rows.amin(0)).clamp_(min=1e-30) / 127
    points = (rows * (1 / scale)).round_().to(torch.int8)
    for block in _blocks(len(matrix)):
        sums = torch._int_mm(points[:, block].T, points[:, : block.stop])
        matrix[block, : block.stop].add_(sums.float().mul_(scale[block, None]).mul_(scale[: block.stop]))


def mirror(matrix: torch.Tensor) -> None:
    """Fill in what lies above the blocks on the diagonal."""
    for block in _blocks(len(matrix)):
        matrix[: block.start, block] = matrix[block, : block.start].T


def _blocks(features: int) -> Iterator[slice]:
    size = max(SMALLEST, features // BLOCKS)
    return (slice(start, start + size) for start in range(0, features, size))
