"""Roundings for tests."""

from __future__ import annotations

from typing import Any

from backend.engines.native.files import schemes
from backend.engines.native.methods.rounding import Rounding


def a_rounding(method: Any, bits: int, symmetric: bool) -> Rounding:
    import torch

    if method == "w8a8":
        return schemes.int8("dynamic")
    return schemes.weight_only(bits, 32, symmetric=symmetric, dtype=torch.bfloat16)
