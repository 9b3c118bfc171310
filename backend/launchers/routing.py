"""Combines two launchers into one: some jobs are for the second, the rest for the first."""

from __future__ import annotations

from collections.abc import Callable, Collection

from backend.channel import Channel
from backend.domain.jobs.jobs import Handle, WorkerState
from backend.launchers.base import Launcher


class RoutingLauncher(Launcher):
    """Handles are those of the two launchers; `second` is no RoutingLauncher. `takes`: whether the second one takes the
    job of a channel."""

    name = "divided"

    def __init__(self, first: Launcher, second: Launcher, takes: Callable[[Channel], bool]) -> None:
        self._first, self._second, self._takes = first, second, takes
        self.places = first.places or second.places

    def start(self, job_id: str, channel: Channel) -> Handle:
        return (self._second if self._takes(channel) else self._first).start(job_id, channel)

    def poll(self, handle: Handle) -> WorkerState:
        return self._launcher(handle).poll(handle)

    def cancel(self, handle: Handle, *, force: bool) -> None:
        self._launcher(handle).cancel(handle, force=force)

    def sweep(self, job_id: str, handle: Handle | None) -> None:
        for launcher in [self._launcher(handle)] if handle else [self._first, self._second]:
            launcher.sweep(job_id, handle)

    def sweep_others(self, live_jobs: Collection[str]) -> None:
        for launcher in (self._first, self._second):
            launcher.sweep_others(live_jobs)

    def ended_elsewhere(self, spec: str, handle: Handle) -> bool:
        return self._launcher(handle).ended_elsewhere(spec, handle)

    def _launcher(self, handle: Handle) -> Launcher:
        return self._second if handle.launcher == self._second.name else self._first
