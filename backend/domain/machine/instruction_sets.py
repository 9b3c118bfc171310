"""The speed of a processor's products of fewer bits relative to 16-bit ones, by instruction set and rows. Pure.

Rows are the tokens of one pass: streams, times what speculation adds. Figures are measurements, each with its source;
without one it says that it is an assumption.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal, NamedTuple

InstructionSet = Literal["amx", "vnni", "none"]
AMX = "amx_int8"
VNNI = frozenset({"avx512_vnni", "avx_vnni", "i8mm", "asimddp"})


class SpeedGain(NamedTuple):
    """(best, worst) speed of a product of so many rows against the same in 16 bit."""

    rows: int
    best: float
    worst: float


class Products(NamedTuple):
    gains: tuple[SpeedGain, ...]
    source: str


_AMX_SOURCE = "measured kernel by kernel with vLLM 0.32 on two shared cores of an AMX Xeon"
_VNNI_SOURCE = "measured product by product on an AMD EPYC with AVX-512 VNNI (docs/results.md)"
_NONE_SOURCE = (
    "measured with vLLM 0.32 on one core of an AMD EPYC without AVX-512, where 16 bit is emulated (docs/results.md)"
)
_UNPACKED = Products(
    (SpeedGain(1, 1 / 1.3, 1 / 2.0),),
    "measured on one core without AMX with vLLM: 7.0 to 5.1 tokens/s at 1 stream, 28.6 to 14.2 at 8",
)
PRODUCTS: dict[tuple[InstructionSet, int], Products] = {
    ("amx", 8): Products(
        (SpeedGain(1, 2.7, 1.7), SpeedGain(4, 2.1, 2.0), SpeedGain(16, 3.0, 3.0), SpeedGain(64, 2.9, 2.9)), _AMX_SOURCE
    ),
    ("amx", 4): Products(
        (SpeedGain(1, 4.6, 4.3), SpeedGain(4, 4.7, 3.6), SpeedGain(16, 2.4, 2.4), SpeedGain(64, 1.4, 1.4)), _AMX_SOURCE
    ),
    ("vnni", 8): Products(
        (SpeedGain(1, 1.9, 1.1), SpeedGain(4, 2.7, 1.2), SpeedGain(16, 2.0, 1.5), SpeedGain(64, 1.9, 1.8)), _VNNI_SOURCE
    ),
    ("vnni", 4): _UNPACKED,
    ("none", 8): Products((SpeedGain(1, 0.22, 0.22), SpeedGain(4, 0.65, 0.63), SpeedGain(16, 2.3, 2.1)), _NONE_SOURCE),
    ("none", 4): _UNPACKED,
}
"""Products by instruction set and bits: 8 bits on both sides, or 4 for the weights (with AMX vLLM rounds their inputs
to 8 bits)."""


def instruction_set(features: Collection[str]) -> InstructionSet:
    """Return the instruction set that decides, from the processor's feature flags."""
    if AMX in features:
        return "amx"
    return "vnni" if VNNI & set(features) else "none"


def is_avx2_alone(features: Collection[str]) -> bool:
    """Return whether vLLM runs its smaller build there: on x86 processors without AVX-512 (platforms/cpu.py)."""
    return "avx2" in features and "avx512f" not in features


def speed_range(kind: InstructionSet, bits: int, rows: float) -> tuple[float, float]:
    """Return (best, worst) speed at that many rows: interpolated by their logarithm between measured rows, beyond them
    the last."""
    gains = PRODUCTS[kind, bits].gains
    below = max((gain for gain in gains if gain.rows <= rows), default=gains[0])
    above = min((gain for gain in gains if gain.rows >= rows), default=gains[-1])
    share = math.log(rows / below.rows) / math.log(above.rows / below.rows) if above.rows > below.rows else 0.0
    return below.best + share * (above.best - below.best), below.worst + share * (above.worst - below.worst)


def describe_speeds(kind: InstructionSet, bits: int) -> str:
    """Return `1.7 to 2.7 times as fast as in 16 bit at 1 row, ...: where that was measured`, without a full stop."""
    products = PRODUCTS[kind, bits]
    first, *others = products.gains
    parts = [f"{_range_text(first)} times as fast as in 16 bit at {first.rows} row"]
    parts += [f"{_range_text(gain)} at {gain.rows}" for gain in others]
    if len(parts) == 1:
        return f"{parts[0].partition(' at ')[0]}, {products.source}"
    return f"{', '.join(parts)} (rows are streams, times the tokens of a pass), {products.source}"


def _range_text(gain: SpeedGain) -> str:
    low, high = f"{gain.worst:.2g}", f"{gain.best:.2g}"
    return low if low == high else f"{low} to {high}"
