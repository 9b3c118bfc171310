"""Puts results in their place beside the supervisor's rounds: an upload may take hours, and other jobs go on meanwhile.

A place that cannot be reached costs no result: it is asked again after a pause, until it answers or somebody cancels
the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from backend.store.leases import Lease
from backend.supervisor.registry import NotPlaced, Staged

PAUSE_S = 15.0
"""Before a place is asked again that did not answer."""
MOMENT_S = 0.5
"""That a round stays with a result which it has just handed over: a small one is in its place by then, and the next job
starts in the round in which this one ends."""


@dataclass
class _Upload:
    work: Future[Staged]
    again_at: float | None = None


class Uploads:
    """`beside`: in threads of their own; else at once, as a test wants it."""

    def __init__(self, *, beside: bool = False, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._pool = ThreadPoolExecutor(2, "uploads") if beside else None
        self._going: dict[Lease, _Upload] = {}
        self._now = monotonic

    def stage(self, held: Lease, work: Callable[[], Staged]) -> Staged | None:
        """What `work` answers with; None while it goes on. Raises NotPlaced once for each time that the place did not
        answer, and what else `work` raises."""
        if self._pool is None:
            return work()
        going = self._going.get(held)
        if going is None or (going.again_at is not None and self._now() >= going.again_at):
            going = self._going[held] = _Upload(self._pool.submit(work))
            wait([going.work], MOMENT_S)
        if not going.work.done() or going.again_at is not None:
            return None
        try:
            staged = going.work.result()
        except NotPlaced:
            going.again_at = self._now() + PAUSE_S
            raise
        except BaseException:
            del self._going[held]
            raise
        del self._going[held]
        return staged
