"""Samples memory and processor use of this process and everything it started, in the background."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from backend.domain.errors import WorkError
from backend.processes import usage

SAMPLED_EVERY_S, REPORTED_EVERY_S = 1.0, 5.0


class PeakMemory:
    """Samples the tree of this process every second until stopped, and reports what it used at a bounded rate.

    `report` receives the highest memory and the mean processor use since its last call: every five seconds at first,
    then every sixtieth of the time since the start, so that a job of hours has a few hundred points.
    """

    def __init__(self, report: Callable[[int, float], None] | None = None) -> None:
        self.peak = 0
        self._report = report
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
        first, highest = usage(os.getpid()), 0
        while True:
            used, now = usage(os.getpid()), time.monotonic()
            self.peak, highest = max(self.peak, used.rss_bytes), max(highest, used.rss_bytes)
            stopping = self._stop.is_set()
            if now - since >= interval(now - begun) or (stopping and now > since):
                self._send_report(highest, max(0.0, used.cpu_s - first.cpu_s) / (now - since))
                first, since, highest = used, now, 0
            if stopping:
                return
            self._stop.wait(SAMPLED_EVERY_S)

    def _send_report(self, highest: int, cores: float) -> None:
        """Report a sample; a full disk is left for the job itself to notice."""
        if self._report is not None:
            with suppress(WorkError):
                self._report(highest, cores)


def interval(elapsed_s: float) -> float:
    """Return the seconds between two points of the resource chart, `elapsed_s` after the start."""
    return max(REPORTED_EVERY_S, elapsed_s / 60)
