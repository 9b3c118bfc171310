"""FP4 of compressed-tensors: E2M1 numbers, two in a byte, under the scales of NVFP4 or MXFP4.

Layout, from compressed-tensors 0.17.0 (compressors/nvfp4, mxfp4): `weight_packed` uint8 [out, in / 2], the
first of two numbers in the low bits; of NVFP4 `weight_scale` E4M3 [out, in / 16] and `weight_global_scale` fp32 [1],
which divides; of MXFP4 `weight_scale` uint8 [out, in / 32], the exponent of a power of two plus 127. Knows one weight
matrix at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.layered.rounded_inputs import FP4_BITS, fp4_codes

if TYPE_CHECKING:
    import torch

NEGATIVE = 8
"""Added to the code of a negative number."""
EXPONENT_BIAS = 127


def compress(grouped: torch.Tensor, scale: torch.Tensor, global_scale: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Make the stored tensors by local name from weights [out, groups, group size] and their scales [out, groups].

    With a `global_scale` [1] it is NVFP4, without one MXFP4, whose scales are powers of two.
    """
    import torch

    # 1. The numbers, two in a byte.
    numbers = (grouped / scale[..., None]).flatten(1)
    codes = fp4_codes(numbers.abs()).to(torch.uint8) + torch.signbit(numbers).to(torch.uint8) * NEGATIVE
    packed = codes[:, 0::2] | (codes[:, 1::2] << FP4_BITS)
    # 2. The scales.
    if global_scale is None:
        exponents = scale.log2().round() + EXPONENT_BIAS
        return {"weight_packed": packed, "weight_scale": exponents.to(torch.uint8)}
    stored = (scale * global_scale).to(torch.float8_e4m3fn)
    return {"weight_packed": packed, "weight_scale": stored, "weight_global_scale": global_scale.float().clone()}
