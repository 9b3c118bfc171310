"""Energy counters of this machine: processor packages by Linux powercap (RAPL), NVIDIA GPUs by NVML. Reads only.

RAPL: /sys/class/powercap/intel-rapl:N holds `energy_uj`, microjoules that start anew after `max_energy_range_uj`
(Linux, Documentation/power/powercap). A package and its DRAM are counted; cores and uncore are within the package and
`psys` holds it, so those are left out. Many kernels let only root read them. NVML: nvmlDeviceGetTotalEnergyConsumption,
millijoules since the driver was loaded, from Volta on (NVML API reference). Knows nothing of what runs meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"
COUNTED = ("package", "dram")
"""Beginnings of the names of zones that do not overlap."""


class Counter(NamedTuple):
    """`joules` so far; it starts anew after `wraps_at` joules, None for one that does not."""

    joules: float
    wraps_at: float | None


def read_counters(powercap: Path | None = None, library: str = NVML) -> dict[str, Counter]:
    """Return every counter that can be read now, by a name such as `package-0 (RAPL)` or `GPU 0 (NVML)`; empty if there
    is none."""
    return {**_rapl(powercap or POWERCAP), **_nvml(library)}


def energy_used(before: dict[str, Counter], after: dict[str, Counter]) -> dict[str, float]:
    """Return the joules between two readings of the counters that both have. A counter that wrapped around once is
    counted right."""
    return {name: _between(before[name], after[name]) for name in before if name in after}


def _between(before: Counter, after: Counter) -> float:
    passed = after.joules - before.joules
    return passed if passed >= 0 or after.wraps_at is None else passed + after.wraps_at


def _rapl(powercap: Path) -> dict[str, Counter]:
    counters: dict[str, Counter] = {}
    for zone in sorted(powercap.glob("intel-rapl:*")):
        with suppress(OSError, ValueError):
            name = (zone / "name").read_text().strip()
            if name.startswith(COUNTED):
                label = f"{name}{_package_suffix(zone) if name == 'dram' else ''} (RAPL)"
                counters[label] = Counter(_joules(zone / "energy_uj"), _joules(zone / "max_energy_range_uj"))
    return counters


def _package_suffix(zone: Path) -> str:
    """Return the package that a part belongs to: `intel-rapl:0:1` is of `intel-rapl:0`."""
    return f" of {(zone.parent / zone.name.rpartition(':')[0] / 'name').read_text().strip()}"


def _joules(file: Path) -> float:
    return int(file.read_text()) / 1e6


@lru_cache(maxsize=4)
def _open(library: str) -> ctypes.CDLL | None:
    """NVML, started once a process; None where there is no driver."""
    try:
        nvml = ctypes.CDLL(library)
        return nvml if nvml.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def _nvml(library: str) -> dict[str, Counter]:
    nvml = _open(library)
    return {} if nvml is None else {f"GPU {number} (NVML)": Counter(joules, None) for number, joules in _gpus(nvml)}


def _gpus(nvml: ctypes.CDLL) -> Iterator[tuple[int, float]]:
    """Yield (number, joules) of each GPU that counts its energy."""
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return
    for number in range(count.value):
        handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)) != 0:
            continue
        if nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)) == 0:
            yield number, millijoules.value / 1e3
