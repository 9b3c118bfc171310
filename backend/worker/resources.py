"""Memory of a process tree, sampled in the background from /proc: standard library only, for any engine's interpreter."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_rss(pid: int) -> int:
    """Resident bytes of the process and all its descendants: private pages of each, and the largest file-backed share once.

    Summing whole resident sizes would count libraries that several processes map once a process; reading proportional sizes
    (smaps) walks every page table and would disturb what is measured.
    """
    private = shared = 0
    for each in _tree(pid):
        try:
            _, resident, mapped, *_ = (Path(f"/proc/{each}/statm").read_text()).split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        private += int(resident) - int(mapped)
        shared = max(shared, int(mapped))
    return (private + shared) * _PAGE


def _tree(pid: int) -> list[int]:
    """The process and every process below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        current = waiting.pop()
        found.append(current)
        waiting += children.get(current, [])
    return found


class PeakMemory:
    """Samples the tree of this process every second until stopped."""

    def __init__(self, every_s: float = 1.0) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, args=(every_s,), daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self, every_s: float) -> None:
        while True:
            self.peak = max(self.peak, tree_rss(os.getpid()))
            if self._stop.wait(every_s):
                return
