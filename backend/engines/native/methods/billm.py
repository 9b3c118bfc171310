"""About one bit a weight: a sign and a size for each of three parts of a block of columns.

BiLLM, Huang et al. 2024 (arXiv 2402.04291). In each block of 128 columns the salient columns, by w^2 / U_jj^2 with U'U
the inverse Hessian, are binarized twice, the second time what the first left; the other weights fall into those of
small and of large |w|, binarized apart. Each part of a row has a mean and a size. Later columns make up for the error
as in GPTQ. How many columns are salient and where the others are parted is tried on the weights, as the paper says; the
authors' code (utils/structure.py) tries it on the saliences.

No file format holds this: values are stored in 16 bits. The paper's 1.1 bits leave out the part of each weight, which
is one more bit, and the sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from backend.domain.recipe.methods import QUANTIZE
from backend.engines.base import QuantizeRequest
from backend.engines.native.group import Linear, Stored
from backend.engines.native.methods.brain_surgeon import factor_of, sweep
from backend.engines.native.methods.nearest import sixteen_bit
from backend.engines.native.methods.pipelines import Pipeline

if TYPE_CHECKING:
    import torch

MOST_SALIENT = 50
"""Columns of a block, the authors' `up_lim`."""
SPLITS = 81
"""Shares of the weights in the part of small |w| that are tried, from 10 to 90 %, the authors'."""


def binarized(weight: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return mean + sign x size of each row's weights [out, block] where `part` is true, zero elsewhere."""
    count = part.sum(1, keepdim=True).clamp_min(1)
    mean = (weight * part).sum(1, keepdim=True) / count
    around = (weight - mean) * part
    size = around.abs().sum(1, keepdim=True) / count
    return (around.sign() * size + mean) * part


def twice_binarized(weight: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """Return the binarized weights of `part` with what that left, binarized too."""
    first = binarized(weight, part)
    return first + binarized(weight - first, part)


def binarized_block(weight: torch.Tensor, salience: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Binarize a block of columns [out, block] by `salience` of the same shape; return it, and how many columns are
    salient."""
    import torch

    # 1. The number of salient columns that loses least, with the others in one part.
    order = salience.sum(0).argsort(descending=True)
    salient, error, best = torch.zeros_like(weight, dtype=torch.bool), float("inf"), 0
    for count in range(1, min(MOST_SALIENT, weight.shape[1] - 1) + 1):
        salient[:, order[count - 1]] = True
        values = twice_binarized(weight, salient) + binarized(weight, ~salient)
        if (lost := float((weight - values).square().sum())) < error:
            error, best = lost, count
    salient = torch.zeros_like(salient)
    salient[:, order[:best]] = True
    # 2. The split of the others that loses least.
    values = twice_binarized(weight, salient)
    others = weight.abs()[~salient]
    split, error = values + binarized(weight, ~salient), float("inf")
    for share in torch.linspace(0.1, 0.9, SPLITS).tolist():
        border = others.kthvalue(max(1, round(share * len(others)))).values
        large = ~salient & (weight.abs() > border)
        candidate = values + binarized(weight, large) + binarized(weight, ~salient & ~large)
        if (lost := float((weight - candidate).square().sum())) < error:
            error, split = lost, candidate
    return split, best


class _Blocks:
    """Binarizes a block when its turn comes, with all updates of earlier blocks made."""

    def __init__(self) -> None:
        self.salient = 0

    def block(self, start: int, columns: torch.Tensor, diagonal: torch.Tensor) -> None:
        weight = columns.T.contiguous()
        values, salient = binarized_block(weight, (weight / diagonal).square())
        self.start, self.values = start, values.T.contiguous()
        self.salient += salient

    def column(self, index: int) -> torch.Tensor:
        return self.values[index - self.start]

    def whole_block(self, columns: torch.Tensor, upper: torch.Tensor) -> torch.Tensor | None:
        return None


class Binarizer:
    """Binarizes each linear; weights that were pruned stay zero."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def store(self, linears: Sequence[Linear]) -> list[Stored]:
        return [self._stored(linear) for linear in linears]

    def _stored(self, linear: Linear) -> Stored:
        weight, blocks = linear.stored(), _Blocks()
        values = sweep(weight, factor_of(linear.folded_stats()), blocks)
        if linear.pruned:
            values = values * (linear.weight != 0)
        stored = values.to(self.dtype)
        effective = linear.undone(stored.float())
        bits = 1 + blocks.salient / weight.shape[1]
        return Stored({"weight": stored}, effective, {"relative_error": linear.relative_error(effective), "bits": bits})


def billm(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    """Make the pipeline of weights stored in 16 bits, with this rounding."""
    multiple = QUANTIZE["billm"].multiple
    return replace(sixteen_bit(request, dtype), rounder=Binarizer(dtype), magnitudes=False, multiple=multiple)


PIPELINES = {"billm": billm}
