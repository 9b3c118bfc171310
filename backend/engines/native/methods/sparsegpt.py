"""SparseGPT: drops the weights whose loss hurts least and lets the columns behind make up for it.

Frantar and Alistarh 2023 (arXiv 2301.00774), section 3 and Algorithm 1: the sweep of GPTQ with a mask chosen block by block of
128 columns by w^2 / [H^-1]_jj ("Adaptive Mask Selection"), or every M columns for N:M ("Extension to Semi-Structured Sparsity").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.domain.errors import ImpossibleStack
from backend.engines.native.group import Stats
from backend.engines.native.methods.obs import BLOCK, factor_of, sweep
from backend.engines.native.methods.pruning import Pattern, by_magnitude, largest, n_of_m

if TYPE_CHECKING:
    import torch


def prune(weight: torch.Tensor, stats: Stats, sparsity: float, pattern: Pattern) -> torch.Tensor:
    """The pruned and corrected weight [out, in] of `weight` [out, in] fp32; dropped weights are exactly zero.

    By magnitude where no token was seen. Raises ImpossibleStack where M of the pattern does not divide the inputs.
    """
    if pattern != "unstructured" and weight.shape[1] % int(pattern.partition(":")[2]):
        raise ImpossibleStack(f"The pattern {pattern} does not divide the input size {weight.shape[1]}: use unstructured.")
    if stats.tokens == 0:
        return weight * by_magnitude(weight, sparsity, pattern)
    return sweep(weight, factor_of(stats), _Drop(sparsity, pattern), BLOCK)


class _Drop:
    def __init__(self, sparsity: float, pattern: Pattern) -> None:
        self.sparsity, self.pattern = sparsity, pattern
        self.of = 0 if pattern == "unstructured" else int(pattern.partition(":")[2])

    def block(self, start: int, columns: torch.Tensor, diagonal: torch.Tensor) -> None:
        """Unstructured: the block's mask is chosen now, over all its rows and columns together."""
        self.start, self.columns, self.diagonal = start, columns, diagonal
        if self.of:
            self.mask = columns.new_ones(columns.shape)
            return
        scores = (columns / diagonal[:, None]).square()
        self.mask = largest(scores.flatten()[None], self.sparsity).view_as(columns).to(columns.dtype)

    def column(self, index: int) -> torch.Tensor:
        number = index - self.start
        if self.of and number % self.of == 0:
            part = slice(number, number + self.of)
            scores = (self.columns[part] / self.diagonal[part, None]).square()
            self.mask[part] = n_of_m(scores.T, self.pattern).T.to(scores.dtype)
        return self.columns[number] * self.mask[number]
