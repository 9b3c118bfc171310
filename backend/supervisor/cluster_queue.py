"""Jobs for which a launcher finds machines itself: how many it is given ahead, and what is said of where each is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backend.domain.jobs.jobs import Event, Handle, WorkerState

MOST_WAITING = 4
"""Jobs that a cluster is given before it has found nodes for them: what waits here keeps its place in the queue."""


@dataclass
class ClusterPlacement:
    """Of one attempt. `whole`: it is to have a node to itself; `waiting`: what its launcher last said that it waits
    for."""

    whole: bool = False
    waiting: str | None = None

    def update(self, handle: Handle, outcome: WorkerState) -> tuple[Handle, list[Event]]:
        """The handle with the place where it is now, and what is new: what it waits for, then where it runs."""
        events = []
        if outcome.waiting not in {None, self.waiting}:
            events.append(Event(kind="state", message=f"Waits {outcome.waiting}."))
        self.waiting = outcome.waiting
        if outcome.place not in {None, handle.place}:
            handle = handle.model_copy(update={"place": outcome.place})
            events.append(Event(kind="state", message=f"Runs on {handle.place}.", data={"place": handle.place}))
        return handle, events


def free_places(most: int | None, attempts: Iterable[ClusterPlacement]) -> int | None:
    """How many more jobs the cluster is given; None where there is none, and no job behind one that waits for a node to
    itself, which others would take from it."""
    if most is None:
        return None
    waiting = [attempt for attempt in attempts if attempt.waiting is not None]
    return 0 if any(attempt.whole for attempt in waiting) else max(0, most - len(waiting))
