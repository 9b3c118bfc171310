"""Two launchers as one: some jobs are for the second, the rest for the first."""

from __future__ import annotations

from collections.abc import Callable, Collection

from backend.channel import Channel
from backend.domain.jobs.jobs import Handle, WorkerState
from backend.launchers.base import Launcher


class RoutingLauncher(Launcher):
    """Handles are those of the two, `second` being no `Divided` itself. `takes`: whether that one has the job of this
    channel."""

    name = "divided"

    def __init__(self, first: Launcher, second: Launcher, takes: Callable[[Channel], bool]) -> None:
        self._first, self._second, self._takes = first, second, takes
        self.places = first.places or second.places

    def start(self, job_id: str, channel: Channel) -> Handle:
        return (self._second if self._takes(channel) else self._first).start(job_id, channel)

    def poll(self, handle: Handle) -> WorkerState:
        return self._of(handle).poll(handle)

    def cancel(self, handle: Handle, *, force: bool) -> None:
        self._of(handle).cancel(handle, force=force)

    def sweep(self, job_id: str, handle: Handle | None) -> None:
        for launcher in [self._of(handle)] if handle else [self._first, self._second]:
            launcher.sweep(job_id, handle)

    def sweep_others(self, kept: Collection[str]) -> None:
        for launcher in (self._first, self._second):
            launcher.sweep_others(kept)

    def ended_elsewhere(self, spec: str, handle: Handle) -> bool:
        return self._of(handle).ended_elsewhere(spec, handle)

    def _of(self, handle: Handle) -> Launcher:
        return self._second if handle.launcher == self._second.name else self._first
