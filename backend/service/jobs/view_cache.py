"""A cache of job views, shared by all pages of this process that watch the same job.

Every open page of a running job reads every two seconds, and fifty pages should cost hardly more than one. State and
events are at most SNAPSHOT_MAX_AGE_S old, so an event reaches the screen within three seconds; slower values are at
most SLOW_MAX_AGE_S old. A page that starts again, as after a click, clears the job's entries (`forget`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from backend.domain.jobs.eta import TimeLeft
from backend.domain.jobs.jobs import Event
from backend.service.jobs import jobs, progress
from backend.service.jobs.jobs import JobView
from backend.service.jobs.progress import JobCost, ResourceUse
from backend.service.workspace import Workspace
from backend.store import history, queue

SNAPSHOT_MAX_AGE_S, SLOW_MAX_AGE_S = 0.7, 1.9
MAX_ENTRIES = 256
"""Largest number of cached values, three for each job."""


class JobSnapshot(NamedTuple):
    """A job, its events and its progress at one moment."""

    job: JobView
    events: list[Event]
    """States, phases, notes, warnings and errors, without the progress between them."""
    progress: Event | None


class TimeAndCost(NamedTuple):
    """The time left and the cost of a job; None if unknown."""

    left: TimeLeft | None
    cost: JobCost | None


class _CacheEntry:
    """One cached value with its lock; callers wait while it is read."""

    def __init__(self) -> None:
        self.lock, self.at, self.value = threading.Lock(), float("-inf"), None


_entries: dict[tuple[Hashable, ...], _CacheEntry] = {}
_lock, _clock = threading.Lock(), time.monotonic


def read_snapshot(workspace: Workspace, job_id: str) -> JobSnapshot:
    """Raises NotFound."""

    def read() -> JobSnapshot:
        with workspace.store.read() as session:
            row, progress = queue.get(session, job_id), history.latest_progress(session, job_id)
            return JobSnapshot(jobs.view(row), history.timeline(session, job_id), progress)

    snapshot: JobSnapshot = _read_through(workspace, "moving", job_id, SNAPSHOT_MAX_AGE_S, read)
    return snapshot


def read_time_and_cost(workspace: Workspace, job: JobView) -> TimeAndCost:
    def read() -> TimeAndCost:
        return TimeAndCost(progress.time_left(workspace, job), progress.find_cost(workspace, job))

    time_and_cost: TimeAndCost = _read_through(workspace, "expected", job.id, SLOW_MAX_AGE_S, read)
    return time_and_cost


def read_resource_use(workspace: Workspace, job: JobView) -> list[ResourceUse]:
    """Return the resource use of the job's processes so far."""
    points: list[ResourceUse] = _read_through(
        workspace, "uses", job.id, SLOW_MAX_AGE_S, lambda: progress.resource_use(workspace, job)
    )
    return points


def forget(workspace: Workspace, job_id: str) -> None:
    """Clear the job's entries, so that the next call reads."""
    with _lock:
        for what in ("moving", "expected", "uses"):
            _entries.pop((workspace.store, what, job_id), None)


def _read_through(workspace: Workspace, what: str, job_id: str, fresh_s: float, read: Callable[[], Any]) -> Any:
    key = (workspace.store, what, job_id)
    with _lock:
        entry = _entries[key] = (
            _entries.pop(key) if key in _entries else _CacheEntry()
        )  # last: the first was asked for longest ago
        for oldest in list(_entries)[:-MAX_ENTRIES]:
            del _entries[oldest]
    with entry.lock:
        if _clock() - entry.at > fresh_s:
            entry.value, entry.at = read(), _clock()
        return entry.value
