"""Reads a checkpoint in AutoAWQ's GEMM format by the names and values of a plain one: transformers 5 does not.

Layout (AutoAWQ 0.2.9, utils/packing_utils.py): `qweight` int32 [in, out / 8], `qzeros` int32 [groups, out / 8] hold eight
unsigned 4-bit numbers each, the outputs in the order 0 2 4 6 1 3 5 7 from the lowest bits up; `scales` [groups, out]. A weight
is (number - zero) x scale. Knows nothing of scores.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from backend.layered.families import FAMILIES
from backend.layered.source import Packed

if TYPE_CHECKING:
    import torch

METHOD = "awq"
PARTS = ("qweight", "qzeros", "scales")
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""In which four bits, counted from the lowest, each output of eight lies."""


def is_gemm(folder: Path) -> bool:
    """Whether config.json says so."""
    config = json.loads((folder / "config.json").read_bytes()).get("quantization_config") or {}
    return config.get("quant_method") == METHOD and str(config.get("version", "")).lower() == "gemm"


class Gemm(Packed):
    """The three parts of each linear as one `weight` [out, in] fp32, turned where the family is. Raises ModelDamaged."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        kind = json.loads((folder / "config.json").read_bytes())["model_type"]
        self.transposed = any(row.transposed for row in FAMILIES.get(kind, ()))
        linears = [name.removesuffix(".qweight") for name in self.files if name.endswith(".qweight")]
        self.named({f"{linear}.weight": [f"{linear}.{part}" for part in PARTS] for linear in linears})

    def weight(self, name: str, held: dict[str, torch.Tensor]) -> torch.Tensor:
        weight = dequantized(*(held[part] for part in self.parts[name]))
        return weight.T.contiguous() if self.transposed else weight


def dequantized(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The weight [out, in] fp32."""
    numbers, zeros = unpacked(qweight), unpacked(qzeros)
    size = len(numbers) // len(zeros)
    return ((numbers - zeros.repeat_interleave(size, 0)).float() * scales.float().repeat_interleave(size, 0)).T.contiguous()


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """int32 [rows, out / 8] as numbers [rows, out]."""
    import torch

    shifts = torch.tensor(ORDER, dtype=torch.int32) * 4
    return (torch.bitwise_right_shift(packed[..., None], shifts) & 15).flatten(1)
