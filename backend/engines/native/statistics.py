"""Collects what algorithms ask about the inputs of linears while a layer runs: the statistics of `group.Stats`.

Knows no family, no file and no algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from backend.domain.errors import WorkError
from backend.engines.native.group import Stats

if TYPE_CHECKING:
    import torch


BLOCKS, SMALLEST = 16, 128
"""Blocks of columns that a Gram matrix is made in, and the fewest columns that are worth a product of their own."""


class Tally:
    """The running statistics of one input. `tokens_to_come` decides the form: fewer than features, and the tokens are kept.

    Of an expert nobody knows it beforehand (0): tokens are kept until there are more than features, then folded.
    """

    def __init__(
        self,
        features: int,
        tokens_to_come: int,
        gram: bool,
        device: str,
        gram_tokens: int | None = None,
        every: int = 1,
        magnitudes: bool = True,
    ) -> None:
        """`gram_tokens`: how many tokens X'X or X is of, where not of all, every `every`-th. `magnitudes`: whether mean
        and largest |x| are asked for; else they are NaN, which nobody can take for a figure."""
        import torch

        self.features, self.tokens, self.magnitudes = features, 0, magnitudes
        self.total_abs = torch.full((features,), 0.0 if magnitudes else torch.nan, device=device)
        self.max_abs = self.total_abs.clone()
        self.kept: list[torch.Tensor] = []
        self.matrix: torch.Tensor | None = None
        """X'X, of which only blocks on and below the diagonal are kept until the end."""
        self.in_matrix = 0
        """Tokens of which it is."""
        self.asked, self.left, self.every = gram, gram_tokens, every
        if gram and tokens_to_come > features:
            self.matrix = torch.zeros(features, features, device=device)

    def add(self, rows: torch.Tensor) -> None:
        """`rows` [tokens, features], fp32 or bfloat16."""
        import torch

        first, self.tokens = -self.tokens % self.every, self.tokens + len(rows)
        if self.magnitudes and len(rows):
            magnitude = rows.abs()
            self.total_abs.add_(magnitude.sum(0, dtype=torch.float32))
            torch.maximum(self.max_abs, magnitude.amax(0), out=self.max_abs)
        if self.left is not None:
            rows = rows[first :: self.every][: self.left]
            self.left -= len(rows)
        if not self.asked or not len(rows):
            return
        if self.matrix is not None:
            self._add_gram(rows)
            return
        self.kept.append(rows.clone())
        if sum(map(len, self.kept)) > self.features:
            self._fold()

    def _fold(self) -> None:
        self.matrix = self.total_abs.new_zeros(self.features, self.features)
        for rows in self.kept:
            self._add_gram(rows)
        self.kept = []

    def _add_gram(self, rows: torch.Tensor) -> None:
        """Add X'X to the blocks on and below the diagonal: it is symmetric, and the other half costs as much.

        bfloat16 multiplies twice as fast on a processor, and sums in fp32, but what leaves the product is rounded. So what the
        tokens before let expect, where they are as many, is subtracted within it, and only the difference is rounded, to 2^-9
        of itself.
        """
        assert self.matrix is not None
        if self.in_matrix < len(rows) or rows.device.type != "cpu":
            rows = rows.float()
        share, self.in_matrix = len(rows) / max(1, self.in_matrix), self.in_matrix + len(rows)
        for block in _blocks(self.features):
            add = _add_product if rows.dtype == self.matrix.dtype else _add_to_expected
            add(self.matrix[block, : block.stop], rows[:, block].T, rows[:, : block.stop], share)

    def merge(self, other: Tally) -> None:
        """Add what was seen on another device."""
        import torch

        device = self.total_abs.device
        self.tokens += other.tokens
        self.total_abs.add_(other.total_abs.to(device))
        torch.maximum(self.max_abs, other.max_abs.to(device), out=self.max_abs)
        self.kept += [rows.to(device) for rows in other.kept]
        if self.asked and self.matrix is None and (other.matrix is not None or sum(map(len, self.kept)) > self.features):
            self._fold()
        if self.matrix is not None:
            for rows in self.kept:
                self._add_gram(rows)
            self.kept = []
            if other.matrix is not None:
                self.matrix.add_(other.matrix.to(device))
                self.in_matrix += other.in_matrix

    def stats(self, name: str) -> Stats:
        """Raises WorkError, naming the module, when what it read was not finite."""
        import torch

        rows = torch.cat(self.kept).float() if self.kept else None
        if self.asked and self.matrix is None and rows is None:
            rows = self.total_abs.new_zeros(0, self.features)
        seen = [each for each in (self.matrix, rows, self.max_abs if self.magnitudes else None) if each is not None]
        if not all(bool(each.isfinite().all()) for each in seen):
            raise WorkError(f"The input of {name} is not finite on the calibration text: check the model's weights.")
        if self.matrix is not None:
            _mirror(self.matrix)
        return Stats(self.tokens, self.total_abs / max(1, self.tokens), self.max_abs, self.matrix, rows)


def _blocks(features: int) -> Iterator[slice]:
    size = max(SMALLEST, features // BLOCKS)
    return (slice(start, start + size) for start in range(0, features, size))


def _add_product(into: torch.Tensor, left: torch.Tensor, right: torch.Tensor, _share: float) -> None:
    into.addmm_(left, right)


def _add_to_expected(into: torch.Tensor, left: torch.Tensor, right: torch.Tensor, share: float) -> None:
    """The same of bfloat16 factors, of which `share` of `into` is expected."""
    import torch

    expected = torch.mul(into, share, out=torch.empty_like(into, dtype=left.dtype))
    into.add_(expected).add_(torch.addmm(expected, left, right, beta=-1))


def _mirror(matrix: torch.Tensor) -> None:
    for block in _blocks(len(matrix)):
        matrix[: block.start, block] = matrix[block, : block.start].T


Taps = dict[str, Tally]
"""By the path of a module in a layer."""
