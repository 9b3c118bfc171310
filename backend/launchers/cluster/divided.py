"""Two launchers as one: what computes goes to the cluster; what belongs to the studio's machine stays on it, such as installs,
imports and servers on its loopback."""

from __future__ import annotations

from backend.channel import Channel
from backend.domain.jobs.jobs import Handle, Outcome
from backend.launchers.base import Launcher


class Divided(Launcher):
    """Handles are those of the two."""

    name, places = "divided", True

    def __init__(self, local: Launcher, cluster: Launcher) -> None:
        self._local, self._cluster = local, cluster

    def start(self, job_id: str, channel: Channel) -> Handle:
        return (self._cluster if channel.granted().claim else self._local).start(job_id, channel)

    def poll(self, handle: Handle) -> Outcome:
        return self._of(handle).poll(handle)

    def cancel(self, handle: Handle, *, force: bool) -> None:
        self._of(handle).cancel(handle, force=force)

    def sweep(self, job_id: str, handle: Handle | None) -> None:
        for launcher in [self._of(handle)] if handle else [self._local, self._cluster]:
            launcher.sweep(job_id, handle)

    def _of(self, handle: Handle) -> Launcher:
        return self._cluster if handle.launcher == self._cluster.name else self._local
