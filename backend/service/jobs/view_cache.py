"""What those who watch one job see, read once for all pages of this process.

Every open page of a running job looks every two seconds, and fifty of them are to cost hardly more than one. So what
moves is at most MOVING_S old, which keeps an event on its way to the screen under three seconds, and what is slow to
read and changes little at most SLOW_S. A page that begins anew, as after a click, has all of it read again (`forget`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from backend.domain.jobs.eta import Range
from backend.domain.jobs.jobs import Event
from backend.service.jobs import jobs, progress
from backend.service.jobs.jobs import JobView
from backend.service.jobs.progress import Cost, Use
from backend.service.workspace import Workspace
from backend.store import history, queue

MOVING_S, SLOW_S = 0.7, 1.9
MOST_KEPT = 256
"""Values, three a job."""


class Moving(NamedTuple):
    """A job as it was at one moment."""

    job: JobView
    events: list[Event]
    """States, phases, notes, warnings and errors, without the progress between them."""
    progress: Event | None


class Expected(NamedTuple):
    """What is left of it and what it has cost; None where that is not known."""

    left: Range | None
    cost: Cost | None


class _Kept:
    """One value; whoever asks while it is read waits for it."""

    def __init__(self) -> None:
        self.lock, self.at, self.value = threading.Lock(), float("-inf"), None


_kept: dict[tuple[Hashable, ...], _Kept] = {}
_lock, _now = threading.Lock(), time.monotonic


def moving(workspace: Workspace, job_id: str) -> Moving:
    """Raises NotFound."""

    def read() -> Moving:
        with workspace.store.read() as session:
            row, progress = queue.get(session, job_id), history.latest_progress(session, job_id)
            return Moving(jobs.view(row), history.timeline(session, job_id), progress)

    found: Moving = _shared(workspace, "moving", job_id, MOVING_S, read)
    return found


def expected(workspace: Workspace, job: JobView) -> Expected:
    def read() -> Expected:
        return Expected(progress.time_left(workspace, job), progress.cost(workspace, job))

    found: Expected = _shared(workspace, "expected", job.id, SLOW_S, read)
    return found


def uses(workspace: Workspace, job: JobView) -> list[Use]:
    """What its processes used so far."""
    found: list[Use] = _shared(workspace, "uses", job.id, SLOW_S, lambda: progress.resources(workspace, job))
    return found


def forget(workspace: Workspace, job_id: str) -> None:
    """The next look at the job reads."""
    with _lock:
        for what in ("moving", "expected", "uses"):
            _kept.pop((workspace.store, what, job_id), None)


def _shared(workspace: Workspace, what: str, job_id: str, fresh_s: float, read: Callable[[], Any]) -> Any:
    key = (workspace.store, what, job_id)
    with _lock:
        kept = _kept[key] = _kept.pop(key) if key in _kept else _Kept()  # last: the first was asked for longest ago
        for oldest in list(_kept)[:-MOST_KEPT]:
            del _kept[oldest]
    with kept.lock:
        if _now() - kept.at > fresh_s:
            kept.value, kept.at = read(), _now()
        return kept.value
