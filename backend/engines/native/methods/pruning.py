"""Which weights to drop: masks by magnitude and by Wanda, unstructured or N of M in a row.

Wanda: Sun et al. 2023 (arXiv 2306.11695), section 3: score |W_ij| x ||X_j||_2 (equation 1), compared within each output row.
Magnitude, their baseline, compares |W_ij| within each matrix (Han et al. 2015, arXiv 1506.02626). The kept weights do not change
(SparseGPT's do: `sparsegpt`). Pruned weights are stored as zeros in a dense matrix: vLLM 0.32.0 has no sparse kernel, so that
neither size nor speed gains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from backend.domain.errors import ImpossibleStack
from backend.engines.native.group import Stats

if TYPE_CHECKING:
    import torch

Pattern = Literal["unstructured", "2:4", "4:8"]


def by_magnitude(weight: torch.Tensor, sparsity: float, pattern: Pattern) -> torch.Tensor:
    """The mask [out, in], true where a weight of `weight` [out, in] is kept."""
    if pattern == "unstructured":
        return largest(weight.abs().flatten()[None], sparsity).view_as(weight)
    return n_of_m(weight.abs(), pattern)


def by_wanda(weight: torch.Tensor, stats: Stats, sparsity: float, pattern: Pattern) -> torch.Tensor:
    """The mask [out, in]; as by magnitude where no token was seen."""
    if stats.tokens == 0:
        return by_magnitude(weight, sparsity, pattern)
    scores = weight.abs() * norms(stats)
    return largest(scores, sparsity) if pattern == "unstructured" else n_of_m(scores, pattern)


def norms(stats: Stats) -> torch.Tensor:
    """||X_j||_2 of each input channel over the calibration tokens [in]."""
    squares = stats.rows.square().sum(0) if stats.rows is not None else stats.matrix().diagonal()
    return squares.clamp(min=0).sqrt()


def largest(scores: torch.Tensor, sparsity: float) -> torch.Tensor:
    """The mask of `scores` [rows, n] that drops exactly the round(sparsity x n) lowest of each row, the first of equal ones."""
    import torch

    dropped = round(sparsity * scores.shape[1])
    if dropped == 0:
        return torch.ones_like(scores, dtype=torch.bool)
    edge = scores.kthvalue(dropped, dim=1, keepdim=True).values
    below, equal = scores < edge, scores == edge
    missing = dropped - below.sum(1, keepdim=True)
    return ~(below | (equal & (equal.cumsum(1, dtype=torch.int32) <= missing)))


def n_of_m(scores: torch.Tensor, pattern: Pattern) -> torch.Tensor:
    """The mask of `scores` [out, in] that keeps the N highest of each M neighbours of a row.

    Raises ImpossibleStack where M does not divide the inputs.
    """
    import torch

    keep, of = map(int, pattern.split(":"))
    if scores.shape[1] % of:
        raise ImpossibleStack(f"The pattern {pattern} does not divide the input size {scores.shape[1]}: use unstructured.")
    shaped = scores.reshape(len(scores), -1, of)
    mask = torch.zeros_like(shaped, dtype=torch.bool)
    return mask.scatter_(-1, shaped.topk(keep, dim=-1).indices, True).view_as(scores)
