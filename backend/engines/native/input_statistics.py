"""Collects what algorithms ask about the inputs of linears while a layer runs: the statistics of `group.Stats`.

Gram matrices X'X are symmetric, so only blocks on and below the diagonal are made, by `add`, and mirrored once at the
end. Knows no family, no file and no algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from backend.domain.errors import WorkError
from backend.engines.native.group import Stats
from backend.layered.matrix_products import has_int8

if TYPE_CHECKING:
    import torch

BLOCKS, SMALLEST = 16, 128
"""Blocks of columns that a matrix is made in, and the fewest columns that are worth a product of their own."""
PIECE, FEWEST = 2048, 512
"""Tokens that share their scales as integers, and the fewest that are made integers at all."""


def add(matrix: torch.Tensor, rows: torch.Tensor) -> None:
    """Add X'X of `rows` X [tokens, in] fp32 to the blocks of `matrix` [in, in] fp32 on and below its diagonal.

    On a processor that multiplies 8-bit integers itself it is the exact X'X of tokens rounded to 255 points a channel,
    which is positive semidefinite as GPTQ's inverse needs it. Rounding adds noise of s^2 / 12 to a channel, s its
    distance between points:
    0.01 % of the power of one whose largest value is 5 times its root mean square, 1 % at worst, where one token has it
    all. What GPTQ inverts has directions of far less power, in which this counts for more: docs/decisions/0012 has it
    of trained models. On a CUDA device it is that of tokens rounded to float16 (11 bits) with a scale a channel.
    """
    if rows.is_cuda:
        _add_of_halves(matrix, rows)
        return
    # Multiply piece by piece: as integers if the hardware has them and the piece is worth it, else in fp32.
    for start in range(0, len(rows), PIECE):
        piece = rows[start : start + PIECE]
        if len(piece) >= FEWEST and has_int8(rows.device.type):
            _add_of_integers(matrix, piece)
            continue
        for block in _blocks(len(matrix)):
            matrix[block, : block.stop].addmm_(piece[:, block].T, piece[:, : block.stop])


def _add_of_halves(matrix: torch.Tensor, rows: torch.Tensor) -> None:
    """Add X'X of `rows` as float16, each channel divided by its largest value; the sums are fp32."""
    import torch

    scale = rows.abs().amax(0).clamp_(min=1e-30)
    points = (rows / scale).half()
    for block in _blocks(len(matrix)):
        sums = torch.mm(points[:, block].T, points[:, : block.stop], out_dtype=torch.float32)
        matrix[block, : block.stop].add_(sums.mul_(scale[block, None]).mul_(scale[: block.stop]))


def _add_of_integers(matrix: torch.Tensor, rows: torch.Tensor) -> None:
    """Add X'X of `rows` rounded to 8-bit integers; their sums stay below 127^2 x PIECE, so int32 holds them."""
    import torch

    scale = torch.maximum(rows.amax(0), -rows.amin(0)).clamp_(min=1e-30) / 127
    points = (rows * (1 / scale)).round_().to(torch.int8)
    for block in _blocks(len(matrix)):
        sums = torch._int_mm(points[:, block].T, points[:, : block.stop])
        matrix[block, : block.stop].add_(sums.float().mul_(scale[block, None]).mul_(scale[: block.stop]))


def mirror(matrix: torch.Tensor) -> None:
    """Copy the blocks below the diagonal to those above it."""
    for block in _blocks(len(matrix)):
        matrix[: block.start, block] = matrix[block, : block.start].T


def _blocks(features: int) -> Iterator[slice]:
    size = max(SMALLEST, features // BLOCKS)
    return (slice(start, start + size) for start in range(0, features, size))


class Collected(NamedTuple):
    """The statistics that are collected of an input X [tokens, features]."""

    gram: bool = True
    """True if X'X, or X itself, is collected."""
    magnitudes: bool = True
    """True if mean and largest |x| are; else they are NaN, which nobody can take for a figure."""
    gram_tokens: int | None = None
    """Most tokens that X'X or X is made of; None: all."""
    every: int = 1
    """X'X or X is made of every so manieth token."""


class Tally:
    """The running statistics of one input.

    `tokens_to_come` decides the form: if they are fewer than features, tokens are stored in place of X'X. For an expert
    the number is not known before (0): tokens are stored until there are more than features, then added up.
    """

    def __init__(
        self,
        features: int,
        tokens_to_come: int,
        collected: Collected,
        device: str,
        weights: torch.Tensor | None = None,
    ) -> None:
        import torch

        # 1. Magnitudes [features], and the weights of all tokens, by which each counts for X'X.
        self.weights, self.place = None if weights is None else weights.to(device).sqrt(), 0
        self.features, self.tokens, self.magnitudes = features, 0, collected.magnitudes
        self.total_abs = torch.full((features,), 0.0 if self.magnitudes else torch.nan, device=device)
        self.max_abs = self.total_abs.clone()

        # 2. Rows of X, or X'X [features, features] if it is the smaller form.
        self.gram, self.tokens_left, self.every = collected.gram, collected.gram_tokens, collected.every
        self.pending: list[torch.Tensor] = []
        self.matrix: torch.Tensor | None = None
        """X'X, of which only blocks on and below the diagonal are made until the end."""
        if self.gram and tokens_to_come > features:
            self.matrix = torch.zeros(features, features, device=device)

    def seek(self, token: int) -> None:
        self.place = token

    def add(self, rows: torch.Tensor) -> None:
        """`rows` [tokens, features] fp32."""
        import torch

        # 1. Magnitudes [features] of every token.
        first, self.tokens = -self.tokens % self.every, self.tokens + len(rows)
        if self.magnitudes and len(rows):
            magnitude = rows.abs()
            self.total_abs.add_(magnitude.sum(0))
            torch.maximum(self.max_abs, magnitude.amax(0), out=self.max_abs)
        # 2. Tokens count by their weights. Only every n-th token counts for X'X, up to a number.
        if self.weights is not None and self.gram:
            rows = rows * self.weights[self.place : self.place + len(rows), None]
            self.place += len(rows)
        if self.tokens_left is not None:
            rows = rows[first :: self.every][: self.tokens_left]
            self.tokens_left -= len(rows)
        if not self.gram or not len(rows):
            return
        # 3. Add to X'X [features, features], or collect rows of X until it is the smaller form.
        if self.matrix is not None:
            add(self.matrix, rows)
            return
        self.pending.append(rows.clone())
        if sum(map(len, self.pending)) > self.features:
            self._fold()

    def _fold(self) -> None:
        if self.matrix is None:
            self.matrix = self.total_abs.new_zeros(self.features, self.features)
        for rows in self.pending:
            add(self.matrix, rows)
        self.pending = []

    def merge(self, other: Tally) -> None:
        """Add what was seen on another device."""
        import torch

        device = self.total_abs.device
        self.tokens += other.tokens
        self.total_abs.add_(other.total_abs.to(device))
        torch.maximum(self.max_abs, other.max_abs.to(device), out=self.max_abs)
        self.pending += [rows.to(device) for rows in other.pending]
        if self.matrix is not None or other.matrix is not None or sum(map(len, self.pending)) > self.features:
            self._fold()
        if self.matrix is not None and other.matrix is not None:
            self.matrix.add_(other.matrix.to(device))

    def stats(self, name: str) -> Stats:
        """Finish the statistics. Raises WorkError that names the module if its input was not finite."""
        import torch

        # 1. Take the form that was collected.
        rows = torch.cat(self.pending) if self.pending else None
        if self.gram and self.matrix is None and rows is None:
            rows = self.total_abs.new_zeros(0, self.features)

        # 2. Check it, and fill the upper half of X'X.
        collected = [self.matrix, rows, self.max_abs if self.magnitudes else None]
        if not all(bool(figures.isfinite().all()) for figures in collected if figures is not None):
            raise WorkError(f"The input of {name} is not finite on the calibration text: check the model's weights.")
        if self.matrix is not None:
            mirror(self.matrix)
        return Stats(self.tokens, self.total_abs / max(1, self.tokens), self.max_abs, self.matrix, rows)


Taps = dict[str, Tally]
"""Tallies by the path of a module in a layer."""
