"""Measures what disturbed a run: processor time used by other programs, withheld by the hypervisor, lost to throttling.

Reads /proc and /sys of Linux. Knows nothing of loads and servers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from backend.domain.figures import counted
from backend.domain.load.records import Disturbance
from backend.processes import usage

STAT, CPUS = Path("/proc/stat"), Path("/sys/devices/system/cpu")
BUSY_SHARE = 0.1
"""Share of all cores used by others above which a run counts as disturbed: as much as a small difference between
variants."""
STOLEN_SHARE = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


class _Reading(NamedTuple):
    time_s: float
    busy_s: float
    stolen_s: float
    own_s: float
    throttled: int | None


class DisturbanceMeter:
    """Compares the tree of this process with the whole machine, from construction to `disturbance()`."""

    def __init__(self) -> None:
        self._first = _read()

    def disturbance(self) -> Disturbance:
        first, last = self._first, _read()
        seconds = max(last.time_s - first.time_s, 1e-9)
        others = (last.busy_s - first.busy_s) - (last.own_s - first.own_s)
        known = first.throttled is not None and last.throttled is not None
        return Disturbance(
            seconds=seconds,
            cores=os.cpu_count() or 1,
            others=max(0.0, others) / seconds,
            stolen=max(0.0, last.stolen_s - first.stolen_s) / seconds,
            throttled=(last.throttled or 0) - (first.throttled or 0) if known else None,
        )


def describe(disturbance: Disturbance) -> str | None:
    """Return why the machine was not quiet, or None if it was."""
    reasons = []
    if disturbance.others > BUSY_SHARE * disturbance.cores:
        reasons.append(f"other programs used {disturbance.others:.2f} of {counted(disturbance.cores, 'core')}")
    if disturbance.stolen > STOLEN_SHARE * disturbance.cores:
        reasons.append(f"the hypervisor withheld {disturbance.stolen:.2f} of {counted(disturbance.cores, 'core')}")
    if disturbance.throttled:
        reasons.append(f"the processor was throttled {counted(disturbance.throttled, 'time')} for heat")
    return " and ".join(reasons) or None


def worst(disturbances: Iterable[Disturbance]) -> Disturbance | None:
    """Return the disturbance in which others used most, or None if there is none."""

    def severity(disturbance: Disturbance) -> float:
        return disturbance.others + disturbance.stolen + 1000 * (disturbance.throttled or 0)

    return max(disturbances, key=severity, default=None)


def _read() -> _Reading:
    busy, stolen = processor_seconds(STAT.read_text())
    return _Reading(time.monotonic(), busy, stolen, usage(os.getpid()).cpu_s, throttles(CPUS))


def processor_seconds(stat: str) -> tuple[float, float]:
    """Return (busy, stolen) seconds of all processors since boot, from the text of /proc/stat (proc_stat(5)).

    Busy: user, nice, system, irq, softirq. Guest time is in user already.
    """
    fields = [int(word) for word in stat.partition("\n")[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, *rest = [*fields, 0]
    return (user + nice + system + irq + softirq) / _TICKS, (rest[0] if rest else 0) / _TICKS


def throttles(cpus: Path) -> int | None:
    """Count thermal throttling events of all processors since boot; None if the kernel does not count them."""
    files = list(cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
    return sum(int(file.read_text()) for file in files) if files else None
