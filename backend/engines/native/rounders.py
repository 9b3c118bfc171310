"""From linears to what is stored of them: the algorithms that round, behind `group.Rounder`.

Linears of one call share an input and are fused by serving engines, so they share what must be one: the Hessian of GPTQ, a
matrix's FP8 scale, the scale of a static input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from backend.engines.native import activations, clip, gptq
from backend.engines.native.group import Linear, Stored
from backend.engines.native.rounding import Grid, Rounding, parameters, rounded, snapped

if TYPE_CHECKING:
    import torch

Write = Callable[["torch.Tensor", Grid], "dict[str, torch.Tensor]"]
"""From values [out, in] that lie on a grid to the stored tensors by local name."""


class Kept:
    """Weights stay 16-bit: as they were, or pruned."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def store(self, linears: Sequence[Linear]) -> list[Stored]:
        return [self._stored(linear) for linear in linears]

    def _stored(self, linear: Linear) -> Stored:
        weight = linear.stored().to(self.dtype)
        effective = linear.undone(weight.float())
        return Stored({"weight": weight}, effective, _report(linear, effective))


class Nearest:
    """Round to nearest, over the full range or over ranges searched (`clipped`).

    `compared` says too what the error would be with neither scales nor searched ranges.
    """

    def __init__(self, rounding: Rounding, write: Write, *, compared: bool = False, clipped: bool = False) -> None:
        self.rounding, self.write, self.compared, self.clipped = rounding, write, compared, clipped

    def store(self, linears: Sequence[Linear]) -> list[Stored]:
        found = self.values([linear.stored() for linear in linears], linears)
        return [
            self._stored(linear, *each, _input_scale(linears, self.rounding)) for linear, each in zip(linears, found, strict=True)
        ]

    def values(self, weights: Sequence[torch.Tensor], linears: Sequence[Linear]) -> list[tuple[torch.Tensor, Grid]]:
        """What each weight [out, in] becomes, and its grid."""
        grids = self.grids(weights, linears)
        return [(snapped(weight, grid, self.rounding), grid) for weight, grid in zip(weights, grids, strict=True)]

    def grids(self, weights: Sequence[torch.Tensor], linears: Sequence[Linear]) -> list[Grid]:
        import torch

        if self.rounding.scheme.weights.strategy == "tensor":
            grid = parameters(torch.cat([weight.flatten() for weight in weights])[None], self.rounding)
            return [Grid(grid.scale.clone(), grid.zero_point.clone()) for _ in weights]
        if self.clipped:
            stats = linears[0].seen()
            return [clip.search(weight, stats, self.rounding) for weight in weights]
        return [parameters(weight, self.rounding) for weight in weights]

    def _stored(self, linear: Linear, values: torch.Tensor, grid: Grid, input_scale: dict[str, torch.Tensor]) -> Stored:
        effective = linear.undone(values)
        report = _report(linear, effective)
        if self.compared:
            report["rtn_relative_error"] = linear.relative_error(rounded(linear.weight, self.rounding))
        return Stored(self.write(values, grid) | input_scale, effective, report)


class Swept(Nearest):
    """GPTQ, over all linears of an input at once: they share the Hessian."""

    def __init__(self, rounding: Rounding, write: Write, *, act_order: bool, clipped: bool) -> None:
        super().__init__(rounding, write, compared=True, clipped=clipped)
        self.act_order = act_order

    def values(self, weights: Sequence[torch.Tensor], linears: Sequence[Linear]) -> list[tuple[torch.Tensor, Grid]]:
        import torch

        pruned = any(linear.weight is not linear.original for linear in linears)
        mask = torch.cat([linear.weight != 0 for linear in linears]) if pruned else None
        grid = _joined(self.grids(weights, linears)) if self.clipped else None
        values, used = gptq.quantize(
            torch.cat(list(weights)), linears[0].seen(), self.rounding, act_order=self.act_order, grid=grid, mask=mask
        )
        return _parted(values, used, [len(weight) for weight in weights])


def _parted(values: torch.Tensor, grid: Grid, heights: Sequence[int]) -> list[tuple[torch.Tensor, Grid]]:
    """Stacked rows of several weights, apart again."""
    ends = list(accumulate(heights))
    parts = [slice(end - height, end) for end, height in zip(ends, heights, strict=True)]
    return [(values[part], Grid(grid.scale[part], grid.zero_point[part])) for part in parts]


def _joined(grids: Sequence[Grid]) -> Grid:
    import torch

    return Grid(torch.cat([grid.scale for grid in grids]), torch.cat([grid.zero_point for grid in grids]))


def _report(linear: Linear, effective: torch.Tensor) -> dict[str, Any]:
    report: dict[str, Any] = {"relative_error": linear.relative_error(effective)}
    if linear.weight is not linear.original:
        report["zeros"] = float((linear.weight == 0).float().mean())
    return report


def _input_scale(linears: Sequence[Linear], rounding: Rounding) -> dict[str, torch.Tensor]:
    """`input_scale` where activations are static: one for all linears, 1 where no token was seen."""
    import torch

    inputs = rounding.scheme.input_activations
    if inputs is None or inputs.dynamic:
        return {}
    most = torch.stack([linear.stats.max_abs / linear.columns for linear in linears]).amax(0)
    unseen = all(linear.stats.tokens == 0 for linear in linears)
    return {"input_scale": torch.ones(1, device=most.device) if unseen else activations.input_scale(most, rounding)}
