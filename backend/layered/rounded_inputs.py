"""Rounds what a quantized linear reads as a server does: to integers, FP8 or FP4, by a scale stored or its own.

Also the arithmetic of FP4's numbers (E2M1), which compressed-tensors 0.17 has only as a function that torch compiles at
its first call. Knows no model and no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FP4_BITS = 4
FP4_POINTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""FP4's numbers without sign, in the order of their codes; code + 8 is the negative (OCP Microscaling Formats 1.0,
section 5.3.3)."""
FP4_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Halfway between two of them. A tie goes to the number with an even code."""


def is_fp4(args: Any) -> bool:
    """Return whether compressed-tensors' arguments are those of FP4 numbers."""
    return bool(args.type == "float" and args.num_bits == FP4_BITS)


def nearest_fp4(values: torch.Tensor) -> torch.Tensor:
    """Round to the nearest FP4 numbers, those beyond the largest to it; shape and dtype stay.

    The numbers are 0.5 apart below 2, 1 apart below 4, then 2 apart, and `round` takes a tie to the even code. In this
    form it takes 0.4 of the time of a look-up of the codes (one thread of an AMD EPYC, 7 million values, 2026-11-28).
    """
    import torch

    magnitudes = values.abs().clamp_(max=FP4_POINTS[-1])
    steps_in_one = torch.where(magnitudes < 4, torch.where(magnitudes < 2, 2.0, 1.0), 0.5).to(values.dtype)
    return magnitudes.mul_(steps_in_one).round_().div_(steps_in_one).copysign_(values)


def fp4_codes(magnitudes: torch.Tensor) -> torch.Tensor:
    """Return the code 0 to 7 of the nearest number to each magnitude, int32."""
    import torch

    # A magnitude on a middle counts as below it, which is right unless the code above is the even one.
    middles = torch.tensor(FP4_MIDDLES, dtype=magnitudes.dtype, device=magnitudes.device)
    ties_upward = (magnitudes == 0.75) | (magnitudes == 1.75) | (magnitudes == 3.5)
    return torch.bucketize(magnitudes, middles, out_int32=True).add_(ties_upward)


def round_input(
    inputs: torch.Tensor, args: Any, static: torch.Tensor | None = None, global_scale: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `inputs` [tokens, features] or [sequences, tokens, features] on the points that a server gives the
    product.

    `args` are the scheme's of compressed-tensors, `static` the stored scale of all tokens, `global_scale` NVFP4's.
    """
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize

    # 1. The scale: stored, or made of these inputs.
    zero = None
    if static is None:
        scale, zero = dynamic_scale(inputs, args, global_scale)
    else:
        scale = static.to(inputs.device)
    # 2. FP4 by its own arithmetic, the others by the library's.
    if not is_fp4(args):
        rounded: torch.Tensor = fake_quantize(inputs, scale, zero, args)
        return rounded
    scale = scale if global_scale is None else scale / global_scale.to(inputs.device)
    grouped = inputs.reshape(*inputs.shape[:-1], -1, args.group_size)
    return (nearest_fp4(grouped / scale[..., None]) * scale[..., None]).flatten(-2)


def dynamic_scale(
    inputs: torch.Tensor, args: Any, global_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the scale and the zero point of what a linear reads, as a server does at each call: one a token, one a
    group of a token, or one.

    `inputs` [tokens, features], as experts read them, or [sequences, tokens, features]; both answers broadcast against
    it, those of groups [..., groups]. compressed-tensors 0.17 takes the first two dimensions for sequences and tokens,
    and gives a matrix one scale for all.
    """
    from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp

    shared = None if global_scale is None else global_scale.to(inputs.device)
    if inputs.ndim > 2:
        scale, zero = compute_dynamic_scales_and_zp(inputs, args, None, shared)
        return scale, zero
    scale, zero = compute_dynamic_scales_and_zp(inputs[None], args, None, shared)
    return (scale[0], zero[0]) if scale.ndim > 2 else (scale, zero)
