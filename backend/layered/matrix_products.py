"""Chooses how matrices are multiplied: fp32 by the fastest exact library, calibration in bfloat16 if the hardware has
it.

A model is served in 16 bit, so its calibration may run in 16 bit: weights and inputs of linears and attention are, the
residual stream and norms stay fp32, statistics are summed in fp32. Knows no model and no algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EXACT = 1e-5
"""Largest relative error of a product that still counts as fp32; bfloat16 has 4e-3."""


@contextmanager
def fast_products() -> Iterator[None]:
    """Let oneDNN compute fp32 products on the processor if they are exact there, while the context lasts.

    MKL, torch's own choice, reaches half of oneDNN's speed on processors that are not Intel's. torch hands fp32
    products to oneDNN only if bfloat16 arithmetic is allowed, which oneDNN uses on processors with matrix tiles (AMX).
    One product is tried, to see which of the two happens.
    """
    import torch

    # Allow bfloat16, unless a product then loses digits.
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    if not _exact():
        matmul.fp32_precision = before
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _exact() -> bool:
    """Return whether numbers that bfloat16 takes for ones, times ones, give what fp32 gives without loss."""
    import torch

    near = 1 + 2**-12
    product = torch.full((256, 256), near) @ torch.ones(256, 256)
    return float((product / (256 * near) - 1).abs().max()) < EXACT


def half_precision(device: str, enabled: bool = True) -> Any:
    """A context in which linears and attention run in bfloat16 on `device`; none where the hardware would emulate
    it."""
    import torch

    kind = device.partition(":")[0]
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=enabled and has_bfloat16(kind))


def has_bfloat16(kind: str) -> bool:
    """Return whether the hardware multiplies bfloat16 itself; `kind` as in `torch.device.type`."""
    import torch

    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16") or able.get("bf16"))


def has_int8(kind: str) -> bool:
    """Return whether the hardware multiplies 8-bit integers itself, in `torch._int_mm`; `kind` as in
    `torch.device.type`."""
    import torch

    able = torch.cpu.get_capabilities()
    return kind == "cpu" and bool(able.get("avx512_vnni") or able.get("amx_int8"))
