"""The state of an attempt besides the job's row: its worker, time limits, place in a cluster and signs of life."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from backend.domain.figures import span
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.jobs import Event, Handle, WorkerState
from backend.domain.jobs.terms import Terms
from backend.store.leases import Lease

MOST_WAITING = 4
"""Jobs that a cluster is given before it has found nodes for them; the others wait in the studio's own queue."""
WORKING_PERCENT = 2.0
"""Percent of one core: a worker that uses more is at work, although it reports nothing."""
LONGEST_ROUND_S = 2.0
"""The most that one round counts as silence, however long ago the last one was."""


class HangDetector:
    """Counts the time for which one worker shows no sign of life.

    Silence is counted per round of the supervisor, by this machine's monotonic clock, so neither a clock that is set
    nor a pause of the supervisor makes a worker look hung.
    """

    def __init__(self, now: float) -> None:
        self._observed_s, self._pulse = now, 0
        self.silent_s = 0.0
        """Seconds for which the process itself showed nothing."""
        self.idle_s = 0.0
        """Seconds for which it reported no work and used no processor."""
        self.watched_s = 0.0
        """Seconds for which it was observed."""

    def observe(self, pulse: int, events: Sequence[Event], now: float) -> None:
        """Count one round. `pulse`: as `Channel.pulse`; `events`: those since the last round; `now`: seconds of a
        monotonic clock."""
        passed, self._observed_s = min(LONGEST_ROUND_S, now - self._observed_s), now
        self.watched_s += passed
        if events or pulse != self._pulse:
            self.silent_s = 0.0
        else:
            self.silent_s += passed
        if any(_shows_work(event) for event in events):
            self.idle_s = 0.0
        else:
            self.idle_s += passed
        self._pulse = pulse

    def hang_reason(self, silent_s: float, idle_s: float | None) -> str | None:
        """Return why the worker counts as hung, or None. `idle_s`: None for a job that may do nothing."""
        if self.silent_s > silent_s:
            return f"The worker's process showed no sign of life for {silent_s:.0f} s"
        if idle_s is not None and self.idle_s > idle_s:
            return f"The worker said nothing and used no processor for {idle_s:.0f} s"
        return None


def _shows_work(event: Event) -> bool:
    return event.kind != "resource" or event.data.get("cpu_percent", 0.0) > WORKING_PERCENT


@dataclass
class ClusterPlacement:
    """The place of one attempt whose launcher finds machines itself."""

    whole: bool = False
    """The job needs a node to itself."""
    waiting: str | None = None
    """The thing that the worker waits for, as the launcher last reported."""

    def update(self, handle: Handle, worker: WorkerState) -> tuple[Handle, list[Event]]:
        """Return the handle with its current place, and an event for each change: what it waits for, where it runs."""
        events = []
        if worker.waiting not in {None, self.waiting}:
            events.append(Event(kind="state", message=f"Waits {worker.waiting}."))
        self.waiting = worker.waiting
        if worker.place not in {None, handle.place}:
            handle = handle.model_copy(update={"place": worker.place})
            events.append(Event(kind="state", message=f"Runs on {handle.place}.", data={"place": handle.place}))
        return handle, events


@dataclass
class Attempt:
    lease: Lease
    hang_detector: HangDetector
    handle: Handle | None = None
    """The worker that was started, while its row does not name it yet."""
    start_failure: tuple[Ending, str] | None = None
    """Why it was not started, until its row says so."""
    ran_before_s: float = 0.0
    """Seconds that the attempt ran before this supervisor took it over, by the database's clock."""
    terms: Terms = field(default_factory=Terms)
    stop_requested_s: float | None = None
    """When the worker was asked to stop, by this machine's monotonic clock."""
    placement: ClusterPlacement = field(default_factory=ClusterPlacement)

    def find_timeout(self, *, spoke: bool) -> tuple[Ending, str] | None:
        """Return the time limit that the attempt exceeds, with its name. `spoke`: the worker has sent events.

        Time is counted in rounds of the supervisor: a pause of this machine does not count against the job.
        """
        start_s, run_s = self.terms.start_timeout_s, self.terms.run_timeout_s
        ran_s = self.ran_before_s + self.hang_detector.watched_s
        if start_s is not None and not spoke and ran_s > start_s:
            return Ending.START_TIMEOUT, f"its start timeout of {span(start_s)}"
        if run_s is not None and ran_s > run_s:
            return Ending.RUN_TIMEOUT, f"its run timeout of {span(run_s)}"
        return None


def free_places(most: int | None, placements: Iterable[ClusterPlacement]) -> int | None:
    """Return how many more jobs the cluster is given; None if there is no cluster.

    No job is given to it behind one that waits for a node to itself, since it would take the node from that one.
    """
    if most is None:
        return None
    waiting = [placement for placement in placements if placement.waiting is not None]
    if any(placement.whole for placement in waiting):
        return 0
    return max(0, most - len(waiting))
