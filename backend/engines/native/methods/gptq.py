"""GPTQ: rounds one column after the other and lets the columns not yet rounded make up for the error.

Frantar et al. 2022 (arXiv 2210.17323), section 4 and Algorithm 1, on X'X of the calibration. `act_order`, the columns
of largest mean square input first, is the authors' code's (`--act-order`), not the paper's; the groups stay where they
are, so that serving needs no reordering (their `--static-groups`). Inputs are the original model's; the paper's are
what layers already quantized give, which made no difference here (docs/decisions/0012). A mask of pruned weights is
kept: those weights round to zero. It is a second sweep after SparseGPT's own; its "Joint Sparsification & Quantization"
(arXiv 2301.00774, section 3) does both in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend.domain.recipe.methods import QUANTIZE
from backend.engines.base import QuantizeRequest
from backend.engines.native.files import schemes
from backend.engines.native.group import Linear, Stats
from backend.engines.native.methods.awq import AwqScaler
from backend.engines.native.methods.brain_surgeon import BLOCK, factor_of, has_kernel, sweep
from backend.engines.native.methods.nearest import Nearest, parted
from backend.engines.native.methods.pipelines import Pipeline, grouped, ungrouped
from backend.engines.native.methods.rounding import Grid, Rounding, Snapped, Write, parameters, snapped

if TYPE_CHECKING:
    import torch


def quantize(
    weight: torch.Tensor,
    stats: Stats,
    rounding: Rounding,
    *,
    act_order: bool = False,
    start: Snapped | None = None,
    mask: torch.Tensor | None = None,
) -> Snapped:
    """Round `weight` [out, in] fp32 to its grid. Linears that share an input may be stacked.

    A row on which plain rounding loses less, measured on `stats`, is rounded plainly. `start` is the weight plainly
    rounded where a search has set the ranges, which are kept; else a group's range is that of its weights when their
    turn comes, with `act_order` of the original ones. `mask` [out, in] is true where a weight was kept by pruning. With
    no tokens seen it is plain rounding.
    """
    # 1. Round plainly: what GPTQ has to beat, row by row.
    plain = start or _plain(weight, rounding)
    if stats.tokens == 0:
        return plain
    before = stats.row_losses(weight - plain.values) if plain.losses is None else plain.losses
    # 2. Sweep: round column by column, the later columns make up for each error. swept [out, in].
    swept, used = _swept(weight, stats, rounding, act_order, plain.grid if act_order or start else None, mask)
    # 3. Take for each row [out] whichever loses less.
    after = stats.row_losses(weight - swept)
    better = after <= before
    values = swept.where(better[:, None], plain.values)
    return Snapped(values, used.where(better, plain.grid), after.minimum(before), plain.plain if start else before)


def _plain(weight: torch.Tensor, rounding: Rounding) -> Snapped:
    grid = parameters(weight, rounding)
    return Snapped(snapped(weight, grid, rounding), grid)


def _swept(
    weight: torch.Tensor,
    stats: Stats,
    rounding: Rounding,
    act_order: bool,
    grid: Grid | None,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, Grid]:
    order = _order(stats, act_order, weight.device)
    decision = _Round(rounding, grid, order, None if mask is None else mask[:, order], weight)
    # Whole groups, so that a group's range is taken from weights with all updates made; for a kernel one group, whose
    # range is known before it starts.
    size = decision.group * (BLOCK // decision.group) or BLOCK
    if not decision.fixed_grid and has_kernel(weight):
        size = decision.group
    return sweep(weight, factor_of(stats, order), decision, size, order), decision.grid()


def _order(stats: Stats, act_order: bool, device: torch.device) -> torch.Tensor:
    """Return the columns by falling mean square input, or in their own order [in]."""
    import torch

    if not act_order:
        return torch.arange(len(stats.mean_abs), device=device)
    return torch.argsort(stats.power(), descending=True, stable=True)


class _Round:
    """Rounds each column on its group's grid, which is made when the group begins unless it was given."""

    def __init__(
        self,
        rounding: Rounding,
        grid: Grid | None,
        order: torch.Tensor,
        mask: torch.Tensor | None,
        weight: torch.Tensor,
    ) -> None:
        import torch

        # 1. The range of integers and the width of a group.
        args = rounding.scheme.weights
        self.rounding, self.mask = rounding, mask
        self.group = args.group_size or weight.shape[1]
        self.low, self.high = -(2 ** (args.num_bits - 1)), 2 ** (args.num_bits - 1) - 1
        if grid is None and self.group > BLOCK:
            grid = parameters(weight, rounding)
        # 2. Scales and zero points [groups, out], fixed now or made when a group begins.
        count = weight.shape[1] // self.group
        self.fixed_grid = grid is not None
        self.scale = grid.scale.T.contiguous() if grid else weight.new_ones(count, len(weight))
        self.zero = grid.zero_point.T.to(weight.dtype).contiguous() if grid else weight.new_zeros(count, len(weight))
        self.scales, self.zeros = self.scale.unbind(), self.zero.unbind()
        self.symmetric = bool(args.symmetric)
        self.zero_type = grid.zero_point.dtype if grid else torch.int8
        # 3. The group of each column, in the order of the sweep.
        self.groups = (order // self.group).tolist()

    def block(self, start: int, columns: torch.Tensor, diagonal: torch.Tensor) -> None:
        self.start, self.columns, self.each = start, columns, columns.unbind()

    def column(self, index: int) -> torch.Tensor:
        """Step by step: torch's fused operator takes longer of one column, 9 us against 4 us of 1,536 weights."""
        number = self.groups[index]
        if not self.fixed_grid and index % self.group == 0:
            self._begin(index - self.start, number)
        scale, zero = self.scales[number], self.zeros[number]
        point: torch.Tensor = (self.each[index - self.start] / scale).round_()
        if not self.symmetric:
            point.add_(zero)
        point.clamp_(self.low, self.high)
        if not self.symmetric:
            point.sub_(zero)
        point.mul_(scale)
        return point if self.mask is None else point * self.mask[:, index]

    def whole_block(self, columns: torch.Tensor, upper: torch.Tensor) -> torch.Tensor | None:
        if not has_kernel(columns):
            return None
        import torch

        from backend.engines.native import column_kernel

        groups = self.groups[self.start : self.start + len(columns)]
        if not self.fixed_grid:
            self._begin(0, groups[0])
        numbers = torch.tensor(groups, dtype=torch.int32, device=columns.device)
        mask = None
        if self.mask is not None:
            mask = self.mask[:, self.start : self.start + len(columns)].T.to(columns.dtype).contiguous()
        return column_kernel.fix(columns, upper, (self.scale, self.zero, numbers, self.low, self.high), mask)

    def _begin(self, start: int, number: int) -> None:
        grid = parameters(self.columns[start : start + self.group].T.contiguous(), self.rounding)
        self.scale[number], self.zero[number] = grid.scale[:, 0], grid.zero_point[:, 0].to(self.zero.dtype)

    def grid(self) -> Grid:
        return Grid(self.scale.T.contiguous(), self.zero.T.contiguous().to(self.zero_type))


class GptqRounder(Nearest):
    """GPTQ, over all linears of an input at once: they share the Hessian."""

    every = 3
    """The sweep makes up for a range not quite the best: the KL of finished models was none the worse
    (docs/decisions/0012)."""

    def __init__(self, rounding: Rounding, write: Write, *, act_order: bool, clipped: bool) -> None:
        super().__init__(rounding, write, compared=True, clipped=clipped)
        self.act_order = act_order

    def snap(self, weights: Sequence[torch.Tensor], linears: Sequence[Linear]) -> list[Snapped]:
        import torch

        """Round the stacked weights of all linears in one sweep."""
        pruned = any(linear.pruned for linear in linears)
        mask = torch.cat([linear.weight != 0 for linear in linears]) if pruned else None
        start = self._searched(weights, linears) if self.clipped else None
        stacked, stats = torch.cat(list(weights)), linears[0].folded_stats()
        snapped = quantize(stacked, stats, self.rounding, act_order=self.act_order, start=start, mask=mask)
        return parted(snapped, [len(weight) for weight in weights])


def gptq(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    form, tuning = grouped(request, dtype), request.tuning
    scaler = AwqScaler(form.rounding) if tuning.get("awq_scales") else None
    act_order, clipped = bool(tuning.get("act_order")), bool(tuning.get("clip"))
    swept = GptqRounder(form.rounding, form.write, act_order=act_order, clipped=clipped)
    return Pipeline(swept, form.config, form.rounding, scaler=scaler, magnitudes=scaler is not None)


def w4a8_fp8(request: QuantizeRequest, dtype: torch.dtype) -> Pipeline:
    """Make GPTQ's pipeline in the form whose inputs are FP8; what it rounds are weights alone."""
    tuning = request.tuning
    act_order, clipped = bool(tuning.get("act_order")), bool(tuning.get("clip"))
    form = ungrouped(request, schemes.w4a8_fp8(dtype, reordered=act_order))
    scaler = AwqScaler(form.rounding) if tuning.get("awq_scales") else None
    swept = GptqRounder(form.rounding, form.write, act_order=act_order, clipped=clipped)
    multiple = QUANTIZE["w4a8_fp8"].multiple
    return Pipeline(swept, form.config, form.rounding, scaler=scaler, magnitudes=scaler is not None, multiple=multiple)


def narrow_integers(request: QuantizeRequest, _dtype: torch.dtype) -> Pipeline:
    """Make GPTQ's pipeline of integers whose inputs are integers of as few bits."""
    form = ungrouped(request, schemes.integers(request.bits))
    act_order, clipped = bool(request.tuning.get("act_order")), bool(request.tuning.get("clip"))
    swept = GptqRounder(form.rounding, form.write, act_order=act_order, clipped=clipped)
    return Pipeline(swept, form.config, form.rounding, magnitudes=False)


PIPELINES = {"gptq": gptq, "w4a8_fp8": w4a8_fp8, "w4a4": narrow_integers, "w6a6": narrow_integers}
