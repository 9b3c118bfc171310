"""Puts results in their place in threads of their own: an upload may take hours, and other jobs go on meanwhile.

A place that cannot be reached costs no result: it is tried again after a pause, until it answers or somebody cancels
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
"""Before a place that did not answer is tried again."""
MOMENT_S = 0.5
"""Seconds that a round waits for an upload that it has just begun: a small one is done by then, and the next job can
start in the same round."""


@dataclass
class _Upload:
    work: Future[Staged]
    retry_s: float | None = None
    """When it is tried again, by the monotonic clock; None while it runs."""


class Uploads:
    def __init__(self, *, in_background: bool = False, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`in_background`: work runs in threads; otherwise at once, as tests want it."""
        self._pool = ThreadPoolExecutor(2, "uploads") if in_background else None
        self._uploads: dict[Lease, _Upload] = {}
        self._now = monotonic

    def stage(self, lease: Lease, work: Callable[[], Staged]) -> Staged | None:
        """Begin or continue `work` for that attempt, and return its result; None while it goes on.

        Raises NotPlaced once for each time that the place did not answer, and whatever else `work` raises.
        """
        if self._pool is None:
            return work()

        # 1. Begin it, also again after the pause.
        upload = self._uploads.get(lease)
        if upload is None or (upload.retry_s is not None and self._now() >= upload.retry_s):
            upload = self._uploads[lease] = _Upload(self._pool.submit(work))
            wait([upload.work], MOMENT_S)
        if not upload.work.done() or upload.retry_s is not None:
            return None

        # 2. Take its result, or pause before the next try.
        try:
            staged = upload.work.result()
        except NotPlaced:
            upload.retry_s = self._now() + PAUSE_S
            raise
        except BaseException:
            del self._uploads[lease]
            raise
        del self._uploads[lease]
        return staged
