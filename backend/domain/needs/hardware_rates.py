"""The hardware that runs an optimize job, as rates.

This machine's processor by its probe, an accelerator by its datasheet.

Shares of the processor's rate were measured (benchmarks/job_costs.py); those of an accelerator are assumptions: no job
was timed on one. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from backend.domain.figures import counted
from backend.domain.machine.device import Device

Range = tuple[float, float]

HALF_SHARE = 0.5
"""Share of the probe's best 16-bit product that a layer's own products reach."""
FULL_SHARES = {"amx_bf16": 0.06, "avx512_bf16": 0.15, "": 0.5}
"""Share of the same that fp32 products reach, by the first instruction set that the processor has: where 16 bit has
instructions of its own, fp32 is that much slower. The middle one was measured."""
CORE_VALUES = 66e6
"""Values a second and core that go through one step of arithmetic in memory: 15 ns each were measured."""
SPREAD: Range = (0.5, 2.0)
"""Least and most of the middle: processors differ from the measured one, and other work takes its share."""
GPU_HALF: Range = (0.5, 0.1)
GPU_FULL: Range = (0.2, 0.03)
"""(best, worst) shares of the nominal 16-bit rate in 16 bit and in fp32."""
GPU_VALUE_BYTES: Range = (40.0, 400.0)
"""Bytes of its memory that a value's step of arithmetic moves."""
LINK: Range = (12e9, 3e9)
"""Bytes/s between host and accelerator."""
DISK: Range = (2e9, 0.1e9)
"""Bytes/s of reading and writing weights: an assumption."""
START: Range = (3.0, 12.0)
"""Seconds for starting the worker, importing the libraries and cutting the text into tokens."""
GPU_START: Range = (10.0, 60.0)


class HardwareRates(NamedTuple):
    """(best, worst) of each. Operations/s in 16 bit and in fp32, values/s, seconds to start, bytes/s over the link to
    an accelerator (None: there is none to cross). `cards` share the passes over the text; the rest runs on one."""

    half: Range
    full: Range
    values: Range
    start: Range
    basis: str
    link: Range | None = None
    memory_bytes: int | None = None
    """Memory of one accelerator, which must have room for a layer."""
    cards: int = 1


def processor_rates(flops: float, cores: int = 2, features: Collection[str] = ("avx512_bf16",)) -> HardwareRates:
    """Return the rates of this machine's processor by its measured 16-bit rate, its cores and its instruction sets."""
    share = next(set_share for name, set_share in FULL_SHARES.items() if not name or name in features)
    middles = (flops * HALF_SHARE, flops * share, cores * CORE_VALUES)
    half, full, values = ((middle / SPREAD[0], middle / SPREAD[1]) for middle in middles)
    spread = f"{SPREAD[0]:g} to {SPREAD[1]:g} of the middle"
    basis = f"this machine's processor, {flops / 1e12:.2g} TFLOP/s measured, {counted(cores, 'core')}, {spread}"
    return HardwareRates(half, full, values, START, basis)


def accelerator_rates(device: Device) -> HardwareRates | None:
    """Return the rates of an NVIDIA accelerator, as shares of its nominal ones; None where those are not known."""
    if device.hardware != "cuda" or not device.flops or not device.bandwidth:
        return None
    flops, bandwidth = device.flops, device.bandwidth
    half, full = ((flops * best, flops * worst) for best, worst in (GPU_HALF, GPU_FULL))
    values = (bandwidth / GPU_VALUE_BYTES[0], bandwidth / GPU_VALUE_BYTES[1])
    shares = f"{GPU_HALF[1]:g} to {GPU_HALF[0]:g} of it in 16 bit, {GPU_FULL[1]:g} to {GPU_FULL[0]:g} in fp32"
    nominal = f"{device.units} x {device.name}, nominal {flops / 1e12:.3g} TFLOP/s in 16 bit"
    basis = f"{nominal}: {shares}, assumed, since no job was timed on an accelerator"
    return HardwareRates(half, full, values, GPU_START, basis, LINK, device.memory_bytes, device.units)
