"""Chooses weights to drop, unstructured or N of M in a row: by magnitude, Wanda or SparseGPT.

Wanda: Sun et al. 2023 (arXiv 2306.11695), section 3: score |W_ij| x ||X_j||_2 (equation 1), compared within each output
row. Magnitude, their baseline, compares |W_ij| within each matrix (Han et al. 2015, arXiv 1506.02626). Both leave the
kept weights as they are. SparseGPT lets the columns behind make up for a loss: Frantar and Alistarh 2023 (arXiv
2301.00774), section 3 and Algorithm 1: the sweep of GPTQ with a mask chosen block by block of 128 columns by w^2 /
[H^-1]_jj ("Adaptive Mask Selection"), or every M columns for N:M ("Extension to Semi-Structured Sparsity"). Pruned
weights are stored as zeros in a dense matrix: vLLM
0.32.0 has no sparse kernel, so neither size nor speed gains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.domain.errors import ImpossibleStack
from backend.engines.base import Pattern, Pruning
from backend.engines.native.group import Linear, Stats
from backend.engines.native.methods.brain_surgeon import BLOCK, factor_of, has_kernel, sweep

if TYPE_CHECKING:
    import torch


def by_magnitude(weight: torch.Tensor, sparsity: float, pattern: Pattern) -> torch.Tensor:
    """Return the mask [out, in], true where a weight of `weight` [out, in] is kept."""
    if pattern == "unstructured":
        return largest(weight.abs().flatten()[None], sparsity).view_as(weight)
    return n_of_m(weight.abs(), pattern)


def by_wanda(weight: torch.Tensor, stats: Stats, sparsity: float, pattern: Pattern) -> torch.Tensor:
    """Return the mask [out, in]; as by magnitude if no token was seen."""
    if stats.tokens == 0:
        return by_magnitude(weight, sparsity, pattern)
    scores = weight.abs() * stats.power().clamp(min=0).sqrt()
    return largest(scores, sparsity) if pattern == "unstructured" else n_of_m(scores, pattern)


def largest(scores: torch.Tensor, sparsity: float) -> torch.Tensor:
    """Return the mask of `scores` [rows, n] without the round(sparsity x n) lowest of each row, the first of equals."""
    import torch

    dropped = round(sparsity * scores.shape[1])
    if dropped == 0:
        return torch.ones_like(scores, dtype=torch.bool)
    edge = scores.kthvalue(dropped, dim=1, keepdim=True).values
    below, equal = scores < edge, scores == edge
    missing = dropped - below.sum(1, keepdim=True)
    return ~(below | (equal & (equal.cumsum(1, dtype=torch.int32) <= missing)))


def n_of_m(scores: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """Return the mask of `scores` [out, in] that keeps the N highest of each M neighbours of a row.

    Raises ImpossibleStack where M does not divide the inputs.
    """
    import torch

    keep, width = map(int, pattern.split(":"))
    if scores.shape[1] % width:
        raise ImpossibleStack(
            f"The pattern {pattern} does not divide the input size {scores.shape[1]}: use unstructured."
        )
    shaped = scores.reshape(len(scores), -1, width)
    mask = torch.zeros_like(shaped, dtype=torch.bool)
    return mask.scatter_(-1, shaped.topk(keep, dim=-1).indices, True).view_as(scores)


def by_sparsegpt(weight: torch.Tensor, stats: Stats, sparsity: float, pattern: Pattern) -> torch.Tensor:
    """Prune and correct `weight` [out, in] fp32; dropped weights are exactly zero.

    By magnitude where no token was seen. Raises ImpossibleStack where M of the pattern does not divide the inputs.
    """
    if pattern != "unstructured" and weight.shape[1] % int(pattern.partition(":")[2]):
        raise ImpossibleStack(
            f"The pattern {pattern} does not divide the input size {weight.shape[1]}: use unstructured."
        )
    if stats.tokens == 0:
        return weight * by_magnitude(weight, sparsity, pattern)
    return sweep(weight, factor_of(stats), _Drop(sparsity, pattern), BLOCK)


class _Drop:
    """Decides which weights of each column are dropped."""

    def __init__(self, sparsity: float, pattern: Pattern) -> None:
        self.sparsity, self.pattern = sparsity, pattern
        self.width = 0 if pattern == "unstructured" else int(pattern.partition(":")[2])

    def block(self, start: int, columns: torch.Tensor, diagonal: torch.Tensor) -> None:
        """Unstructured: the block's mask is chosen now, over all its rows and columns together."""
        self.start, self.columns, self.diagonal = start, columns, diagonal
        if self.width:
            self.mask = columns.new_ones(columns.shape)
            return
        scores = (columns / diagonal[:, None]).square()
        self.mask = largest(scores.flatten()[None], self.sparsity).view_as(columns).to(columns.dtype)

    def column(self, index: int) -> torch.Tensor:
        number = index - self.start
        if self.width and number % self.width == 0:
            part = slice(number, number + self.width)
            scores = (self.columns[part] / self.diagonal[part, None]).square()
            self.mask[part] = n_of_m(scores.T, self.pattern).T.to(scores.dtype)
        return self.columns[number] * self.mask[number]

    def whole_block(self, columns: torch.Tensor, upper: torch.Tensor) -> torch.Tensor | None:
        """A pattern is chosen anew every few columns, so it is decided one by one."""
        if self.width or not has_kernel(columns):
            return None
        from backend.engines.native import column_kernel

        return column_kernel.fix(columns, upper, mask=self.mask)


class WeightPruner:
    """Prunes as the request asks."""

    def __init__(self, pruning: Pruning) -> None:
        self.pruning = pruning

    def prune(self, linear: Linear) -> torch.Tensor:
        weight, stats, pruning = linear.weight, linear.stats, self.pruning
        if pruning.method == "sparsegpt":
            return by_sparsegpt(weight, stats, pruning.sparsity, pruning.pattern)
        if pruning.method == "wanda":
            return weight * by_wanda(weight, stats, pruning.sparsity, pruning.pattern)
        return weight * by_magnitude(weight, pruning.sparsity, pruning.pattern)


class ZerosHeld:
    """Keeps the zeros that are there and drops nothing more; what rounds then knows where they are."""

    def prune(self, linear: Linear) -> torch.Tensor:
        return linear.weight.clone()
