"""AutoAWQ's GEMM format (`quant_method: awq`): packs integers, zero points and scales as its kernels read them.

Layout, from vLLM 0.32.0 (layers/quantization/auto_awq.py): `qweight` int32 [in, out / 8] and `qzeros` int32 [groups,
out / 8] hold eight unsigned 4-bit numbers each, the outputs in the order 0 2 4 6 1 3 5 7 from the lowest bits up;
`scales` [groups, out]. A weight is (number - zero) x scale. Knows one weight matrix at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backend.engines.native.methods.rounding import Grid, Rounding

if TYPE_CHECKING:
    import torch

BITS, EACH, OFFSET = 4, 8, 8
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Number of the output, of eight, in the first, second... four bits."""


def compress(values: torch.Tensor, grid: Grid, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Make the stored tensors by local name from `values` [out, in] on `grid`: 4 bits in groups, scales in `dtype`."""
    groups = grid.scale.shape[1]
    shaped = values.view(len(values), groups, -1)
    zeros = grid.zero_point.float()
    numbers = (shaped / grid.scale[..., None]).round() + zeros[..., None]
    return {
        "qweight": pack(numbers.flatten(1).T.round().int() + OFFSET),
        "qzeros": pack(zeros.T.round().int() + OFFSET),
        "scales": grid.scale.T.to(dtype).contiguous(),
    }


def pack(numbers: torch.Tensor) -> torch.Tensor:
    """Pack numbers 0 to 15 [rows, out] into int32 [rows, out / 8]."""
    import torch

    shaped = numbers.reshape(len(numbers), -1, EACH)[..., list(ORDER)].int()
    shifts = torch.arange(0, EACH * BITS, BITS, dtype=torch.int32, device=numbers.device)
    packed: torch.Tensor = torch.bitwise_left_shift(shaped, shifts).sum(-1, dtype=torch.int32)
    return packed


def quantization_config(rounding: Rounding, ignored: list[str]) -> dict[str, Any]:
    """Make `quantization_config` of config.json; the format always has zero points."""
    return {
        "quant_method": "awq",
        "version": "gemm",
        "bits": BITS,
        "group_size": rounding.scheme.weights.group_size,
        "zero_point": True,
        "modules_to_not_convert": sorted(ignored),
    }
