"""Groups of columns get one bit more or fewer by how much they matter; on average the bits are those asked for.

SliM-LLM, Huang et al. 2024 (arXiv 2405.14917). Groups are ranked by the mean of w^2 / U_jj^2, U'U the inverse Hessian.
As many of the most salient get a bit more as of the least get one fewer; how many is tried on the layer's output (the
authors' code, slim-llm/utils/bitsearch.py), here by its squared error. Ranges are those of the search over X'X that the
other methods have, in place of the paper's, which weighs salient weights. Then columns are rounded by GPTQ.

A group of one bit is its mean |w| with a sign. All are stored as integers of one bit more than the average, which hold
every group: no format has groups of several widths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from backend.engines.base import QuantizeRequest
from backend.engines.native.files import schemes
from backend.engines.native.group import Linear, Stats, Stored
from backend.engines.native.methods import clip_search
from backend.engines.native.methods.brain_surgeon import BLOCK, factor_of, sweep
from backend.engines.native.methods.nearest import Nearest, parted
from backend.engines.native.methods.pipelines import Pipeline, grouped
from backend.engines.native.methods.rounding import Grid, Rounding, Snapped, Write, in_groups, parameters, snapped

if TYPE_CHECKING:
    import torch

EVERY = 3
"""Steps of the range search that are left out, as for GPTQ."""


def signs(weight: torch.Tensor, rounding: Rounding) -> Snapped:
    """Return `weight` [out, in] as the mean |w| of its group with a sign: one bit."""
    import torch

    groups = in_groups(weight, rounding)
    scale = groups.abs().mean(-1).clamp_min(torch.finfo(rounding.scale_dtype).smallest_normal)
    scale = scale.to(rounding.scale_dtype).float()
    values = torch.where(groups < 0, -scale[..., None], scale[..., None]).view(weight.shape)
    return Snapped(values, Grid(scale, torch.zeros_like(scale, dtype=torch.int8)))


def rounded_plainly(weight: torch.Tensor, rounding: Rounding) -> Snapped:
    """Round `weight` [out, in] to nearest over its full ranges."""
    grid = parameters(weight, rounding)
    return Snapped(snapped(weight, grid, rounding), grid)


def group_salience(weight: torch.Tensor, stats: Stats, group: int) -> torch.Tensor:
    """Return the mean of w^2 / U_jj^2 over the rows and columns of each group [groups]."""
    import torch

    factor, inputs = factor_of(stats), weight.shape[1]
    diagonal = torch.cat(
        [factor.rows(start, min(start + BLOCK, inputs)).diagonal() for start in range(0, inputs, BLOCK)]
    )
    return (weight / diagonal).square().mean(0).view(-1, group).mean(1)


def allocate(weight: torch.Tensor, stats: Stats, plain: Mapping[int, Snapped], salience: torch.Tensor) -> list[int]:
    """Return the bits of each group [groups] that lose least at the output, by rounding plainly.

    `plain` has the weight [out, in] at three widths, by their bits: the average, one fewer and one more.
    """
    narrow, average, wide = sorted(plain)
    groups, order = len(salience), salience.argsort().tolist()
    size, best, error = weight.shape[1] // groups, [average] * groups, float("inf")
    for count in range(groups // 2 + 1):
        bits = [average] * groups
        for low, high in zip(order[:count], reversed(order[groups - count :]), strict=True):
            bits[low], bits[high] = narrow, wide
        values = joined(plain, bits, size)
        if (lost := stats.squared(weight - values)) < error:
            best, error = bits, lost
    return best


def joined(plain: Mapping[int, Snapped], bits: Sequence[int], size: int) -> torch.Tensor:
    """Return the values [out, in] with each group at its width."""
    import torch

    parts = [plain[width].values[:, number * size : (number + 1) * size] for number, width in enumerate(bits)]
    return torch.cat(parts, 1)


class _Round:
    """Rounds each column on the grid of its group."""

    def __init__(self, grid: Grid, bits: Sequence[int], order: torch.Tensor, mask: torch.Tensor | None) -> None:
        self.scales = grid.scale.T.contiguous().unbind()
        self.zeros = grid.zero_point.T.float().contiguous().unbind()
        self.bits, self.mask = bits, mask
        self.groups = (order // (len(order) // len(bits))).tolist()

    def block(self, start: int, columns: torch.Tensor, diagonal: torch.Tensor) -> None:
        self.start, self.columns = start, columns

    def column(self, index: int) -> torch.Tensor:
        import torch

        number, column = self.groups[index], self.columns[index - self.start]
        scale, zero, half = self.scales[number], self.zeros[number], 2 ** (self.bits[number] - 1)
        if self.bits[number] == 1:
            point: torch.Tensor = torch.where(column < 0, -scale, scale)
        else:
            point = ((column / scale).round_() + zero).clamp_(-half, half - 1).sub_(zero).mul_(scale)
        return point if self.mask is None else point * self.mask[:, index]

    def whole_block(self, columns: torch.Tensor, upper: torch.Tensor) -> torch.Tensor | None:
        return None


class Widths(NamedTuple):
    """The rounding of a group at one bit fewer than the average, at the average, and at one bit more."""

    narrow: Rounding
    average: Rounding
    wide: Rounding


class MixedWidths(Nearest):
    """Chooses the bits of each group of columns for all linears of an input at once, since they share the Hessian."""

    every = EVERY

    def __init__(self, widths: Widths, bits: int, write: Write, *, act_order: bool, clipped: bool) -> None:
        super().__init__(widths.wide, write, clipped=clipped)
        self.widths, self.average, self.act_order = widths, bits, act_order

    def store(self, linears: Sequence[Linear]) -> list[Stored]:
        import torch

        # 1. Each width by plain rounding, and the bits of each group.
        weights = [linear.stored() for linear in linears]
        stacked, stats = torch.cat(weights), linears[0].folded_stats()
        plain = {self.average + step: self._plain(stacked, stats, step) for step in (-1, 0, 1)}
        size = self.rounding.scheme.weights.group_size
        bits = allocate(stacked, stats, plain, group_salience(stacked, stats, size))
        grid = Grid(
            torch.stack([plain[width].grid.scale[:, number] for number, width in enumerate(bits)], 1),
            torch.stack([plain[width].grid.zero_point[:, number] for number, width in enumerate(bits)], 1),
        )
        # 2. GPTQ's sweep on those grids; a row keeps plain rounding where that loses less.
        result = self._swept(stacked, stats, grid, bits, linears, joined(plain, bits, size))
        # 3. What is written of each linear.
        parts = parted(result, [len(weight) for weight in weights])
        stored = [self._stored(linear, part, {}) for linear, part in zip(linears, parts, strict=True)]
        return [one._replace(report=one.report | {"bits": sum(bits) / len(bits)}) for one in stored]

    def _plain(self, stacked: torch.Tensor, stats: Stats, step: int) -> Snapped:
        rounding = self.widths[step + 1]
        if self.average + step == 1:
            return signs(stacked, rounding)
        if self.clipped:
            return clip_search.search_ranges(stacked, stats, rounding, None, every=self.every)
        return rounded_plainly(stacked, rounding)

    def _swept(
        self,
        stacked: torch.Tensor,
        stats: Stats,
        grid: Grid,
        bits: Sequence[int],
        linears: Sequence[Linear],
        values: torch.Tensor,
    ) -> Snapped:
        import torch

        pruned = any(linear.pruned for linear in linears)
        mask = torch.cat([linear.weight != 0 for linear in linears]) if pruned else None
        if mask is not None:
            values = values * mask
        before = stats.row_losses(stacked - values)
        if stats.tokens == 0:
            return Snapped(values, grid, before)
        order = torch.arange(stacked.shape[1], device=stacked.device)
        if self.act_order:
            order = torch.argsort(stats.power(), descending=True, stable=True)
        decision = _Round(grid, bits, order, None if mask is None else mask[:, order])
        swept = sweep(stacked, factor_of(stats, order), decision, BLOCK, order)
        after = stats.row_losses(stacked - swept)
        return Snapped(swept.where((after <= before)[:, None], values), grid, after.minimum(before))


def slim_llm(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    """Make the pipeline for `bits` on average; one more is what is stored."""
    form = grouped(request.model_copy(update={"bits": request.bits + 1, "symmetric": False}), dtype)
    narrow, average = (
        schemes.weight_only(bits, request.group_size, symmetric=False, dtype=dtype)
        for bits in (max(request.bits - 1, 2), request.bits)
    )
    act_order, clipped = bool(request.tuning.get("act_order")), bool(request.tuning.get("clip"))
    rounder = MixedWidths(
        Widths(narrow, average, form.rounding), request.bits, form.write, act_order=act_order, clipped=clipped
    )
    return Pipeline(rounder, form.config, form.rounding, magnitudes=False)


PIPELINES = {"slim_llm": slim_llm}
