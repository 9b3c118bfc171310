"""Memory of a process tree, sampled in the background from /proc: standard library only, for any engine's interpreter."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree_rss(pid: int) -> int:
    """Resident bytes of the process and all its descendants; shared pages count once a process."""
    children: dict[int, list[int]] = {}
    rss: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(int(stat[1]), []).append(int(entry.name))
            rss[int(entry.name)] = int(stat[21]) * _PAGE
    waiting, total = [pid], 0
    while waiting:
        current = waiting.pop()
        total += rss.get(current, 0)
        waiting += children.get(current, [])
    return total


class PeakMemory:
    """Samples the tree of this process twice a second until stopped."""

    def __init__(self, every_s: float = 0.5) -> None:
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
