"""Rounds weights to integers, FP8 or FP4 and writes them in compressed-tensors form, by that library's own arithmetic
and packing.

Round to nearest (RTN) is `rounded`: every weight goes to the closest point of its grid. Knows one weight matrix at a
time; nothing of models, calibration or scales.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.engines.native.files import fp4_format
from backend.layered.rounded_inputs import is_fp4, nearest_fp4

if TYPE_CHECKING:
    import torch


class Rounding(NamedTuple):
    """The rounding of a weight: a compressed-tensors scheme and format, and the dtype its scales are stored in."""

    scheme: Any
    format: str
    scale_dtype: torch.dtype


class Grid(NamedTuple):
    """The points that weights are rounded to: `scale` fp32 and `zero_point`, both [out, groups], [out blocks, in
    blocks] for FP8 blocks, or [1, 1] for one a matrix.

    A point is (integer - zero_point) x scale, for FP8 an E4M3 and for FP4 an E2M1 number x scale.
    """

    scale: torch.Tensor
    zero_point: torch.Tensor
    global_scale: torch.Tensor | None = None
    """[1] fp32, NVFP4 alone: what is stored a group is scale x global_scale, an E4M3 number."""

    def where(self, rows: torch.Tensor, other: Grid) -> Grid:
        """Return this grid in the rows [out] that are true, `other` in the rest."""
        import torch

        chosen = rows[:, None]
        return self._replace(
            scale=torch.where(chosen, self.scale, other.scale),
            zero_point=torch.where(chosen, self.zero_point, other.zero_point),
        )


Write = Callable[["torch.Tensor", Grid], "dict[str, torch.Tensor]"]
"""Makes the stored tensors, by local name, from values [out, in] on a grid."""


class Snapped(NamedTuple):
    """A weight [out, in] on the points of its grid, and what that costs its rows."""

    values: torch.Tensor
    grid: Grid
    losses: torch.Tensor | None = None
    """||X e'||^2 of each row's error e over the calibration tokens [out], where somebody had to know."""
    plain: torch.Tensor | None = None
    """Losses of rounding to nearest over the full ranges."""


def parameters(
    weight: torch.Tensor,
    rounding: Rounding,
    shrink: torch.Tensor | None = None,
    global_scale: torch.Tensor | None = None,
) -> Grid:
    """Make the grid of `weight` [out, in] that covers the full range of each group, or `shrink` [out, groups] of it.

    The scale is rounded to the dtype it will be stored in before it is used, so that what is scored is what is saved.
    `global_scale` [1]: of NVFP4, where several weights share one; else it is that of this weight.
    """
    low, high = extremes(weight, rounding)
    if shrink is not None:
        low, high = low * shrink, high * shrink
    return grid_over(low, high, rounding, global_scale)


def extremes(weight: torch.Tensor, rounding: Rounding) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the least and the largest weight of each group [out, groups]."""
    grouped = in_groups(weight, rounding)
    return grouped.amin(-1), grouped.amax(-1)  # torch's `aminmax` of a dimension takes ten times as long


def grid_over(
    low: torch.Tensor, high: torch.Tensor, rounding: Rounding, global_scale: torch.Tensor | None = None
) -> Grid:
    """Make the grid whose groups cover [`low`, `high`], both [out, groups]; its scale is as it will be stored."""
    import torch
    from compressed_tensors.quantization.utils import calculate_qparams

    # 1. NVFP4: an E4M3 scale a group under one fp32 scale. MXFP4 and MXFP8: powers of two.
    args = rounding.scheme.weights
    if args.strategy == "tensor_group":
        shared = whole_scale(low, high) if global_scale is None else global_scale
        scale, zero_point = calculate_qparams(low, high, args, global_scale=shared)
        return Grid(scale.float() / shared, zero_point, shared)
    if args.scale_dtype == torch.uint8:
        scale, zero_point = calculate_qparams(low, high, args)
        return Grid(scale.float(), zero_point)

    # 2. Others: any number of the dtype that scales are stored in.
    smallest = torch.finfo(rounding.scale_dtype).smallest_normal * 2**args.num_bits
    high = torch.where(high - low < smallest, low + smallest, high)
    scale, zero_point = calculate_qparams(low, high, args)
    return Grid(scale.to(rounding.scale_dtype).float(), zero_point)


def whole_scale(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return NVFP4's global scale [1] fp32 of weights or inputs within [`low`, `high`], of any shape."""
    from compressed_tensors.quantization.utils import generate_gparam

    scale: torch.Tensor = generate_gparam(low.amin().float(), high.amax().float())
    return scale


def in_groups(weight: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """Return `weight` [out, in] as [out, groups, group size], [out blocks, in blocks, block size] or [1, 1, out x in]:
    the weights that share a scale. Blocks are a copy, the others a view."""
    args = rounding.scheme.weights
    if args.strategy == "tensor":
        return weight.reshape(1, 1, -1)
    if args.strategy == "block":
        rows, columns = args.block_structure
        blocks = weight.reshape(len(weight) // rows, rows, weight.shape[1] // columns, columns)
        return blocks.transpose(1, 2).flatten(2)
    return weight.view(len(weight), -1, args.group_size or weight.shape[1])


def snapped(weight: torch.Tensor, grid: Grid, rounding: Rounding) -> torch.Tensor:
    """Return `weight` [out, in] on the nearest points of `grid`, as it will read after dequantization."""
    import torch
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize

    # 1. Integers: the library's own steps in place, which give the same bits in a third to a tenth of the time.
    args = rounding.scheme.weights
    if args.type == "int":
        half = 2 ** (args.num_bits - 1)
        scale, zero = grid.scale[..., None], grid.zero_point.to(weight.dtype)[..., None]
        points = (in_groups(weight, rounding) / scale).add_(zero).clamp_(-half, half - 1).round_()
        return points.sub_(zero).mul_(scale).view(weight.shape)

    # 2. FP4: the library's steps again.
    if is_fp4(args):
        points = nearest_fp4(in_groups(weight, rounding) / grid.scale[..., None])
        return points.mul_(grid.scale[..., None]).view(weight.shape)

    # 3. FP8: the library's function.
    result = fake_quantize(weight, *_shaped(grid, rounding), args)
    assert isinstance(result, torch.Tensor)
    return result


def rounded(weight: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """Round `weight` [out, in] to nearest over its full range."""
    return snapped(weight, parameters(weight, rounding), rounding)


def compress(weight: torch.Tensor, rounding: Rounding, grid: Grid | None = None) -> dict[str, torch.Tensor]:
    """Make the stored tensors of one linear by local name (`weight` or `weight_packed`, `weight_scale`...).

    A weight that already lies on `grid` is stored as it is.
    """
    from compressed_tensors.compressors import BaseCompressor

    stored_on = grid or parameters(weight, rounding)
    if is_fp4(rounding.scheme.weights):
        return fp4_format.compress(in_groups(weight, rounding), stored_on.scale, stored_on.global_scale)
    scale, zero_point = _shaped(stored_on, rounding)
    compressor = BaseCompressor.get_value_from_registry(rounding.format)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
    tensors: dict[str, torch.Tensor] = compressor.compress(state, rounding.scheme)
    tensors["weight_scale"] = tensors["weight_scale"].to(rounding.scale_dtype)
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _shaped(grid: Grid, rounding: Rounding) -> tuple[torch.Tensor, torch.Tensor]:
    """Shape scales as the library stores them: one scale per matrix is [1]."""
    if rounding.scheme.weights.strategy == "tensor":
        return grid.scale.flatten(), grid.zero_point.flatten()
    return grid.scale, grid.zero_point
