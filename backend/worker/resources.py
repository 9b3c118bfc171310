"""Memory and processor use of a process tree, sampled in the background from /proc.

Standard library only, for any engine's interpreter. A sample takes about 1.5 ms with a hundred processes on the machine.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TOLD_EVERY_S = 5.0
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """`rss_bytes`: resident memory of a process tree. `cpu_s`: processor seconds it and what it has reaped have used."""

    rss_bytes: int
    cpu_s: float


def tree_rss(pid: int) -> int:
    """Resident bytes of the process and all its descendants, as `tree_usage` counts them."""
    return tree_usage(pid).rss_bytes


def tree_usage(pid: int) -> Usage:
    """Memory and processor time of the process and all its descendants.

    Memory is the private pages of each, and the largest file-backed share once: summing whole resident sizes would count
    libraries that several processes map once a process; reading proportional sizes (smaps) walks every page table and would
    disturb what is measured. Processor time of children that have ended stays with whoever waited for them.
    """
    private = shared = 0
    ticks = 0
    for each, used in _tree(pid):
        ticks += used
        try:
            _, resident, mapped, *_ = (Path(f"/proc/{each}/statm").read_text()).split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        private += int(resident) - int(mapped)
        shared = max(shared, int(mapped))
    return Usage((private + shared) * _PAGE, ticks / _TICKS)


def _tree(pid: int) -> list[tuple[int, int]]:
    """The process and every process below it, each with the clock ticks it has used (own and of reaped children)."""
    children: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
            used[int(entry.name)] = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime (proc_pid_stat(5), 14 to 17)
    found, waiting = [], [pid]
    while waiting:
        current = waiting.pop()
        found.append((current, used.get(current, 0)))
        waiting += children.get(current, [])
    return found


class PeakMemory:
    """Samples the tree of this process every second until stopped, and tells what it used at a bounded rate.

    `told` gets the highest memory and the mean processor use since it was told before: every five seconds at first, then every
    sixtieth of the time since the start, so that hours are a few hundred points.
    """

    def __init__(self, told: Callable[[int, float], None] | None = None, every_s: float = 1.0) -> None:
        self.peak = 0
        self._told, self._every = told, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        begun = since = time.monotonic()
        first, highest = tree_usage(os.getpid()), 0
        while True:
            usage, now = tree_usage(os.getpid()), time.monotonic()
            self.peak, highest = max(self.peak, usage.rss_bytes), max(highest, usage.rss_bytes)
            stopping = self._stop.is_set()
            if now - since >= interval(now - begun) or (stopping and now > since):
                self._tell(highest, max(0.0, usage.cpu_s - first.cpu_s) / (now - since))
                first, since, highest = usage, now, 0
            if stopping:
                return
            self._stop.wait(self._every)

    def _tell(self, highest: int, cores: float) -> None:
        """A disk that is full is for the job itself to meet."""
        if self._told is not None:
            with suppress(OSError):
                self._told(highest, cores)


def interval(elapsed_s: float) -> float:
    """Seconds between two points of the resource chart, `elapsed_s` after the start."""
    return max(TOLD_EVERY_S, elapsed_s / 60)
