"""The launcher protocol: a launcher starts a worker somewhere, sees whether it is there, and can stop it. It knows
nothing of the store.

A launcher is one module with one class, and a line in `launchers.choose_launcher`. Events, log, result and output pass
through the job's channel, whose address the worker is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

from backend.channel import Channel
from backend.domain.jobs.jobs import Handle, WorkerState


class Launcher(ABC):
    """A kind of place where workers run, perhaps without this machine's disk.

    `start` returns a handle. It is opaque to everybody else, is stored in the job's row, and is enough for another
    process of the same launcher, after a restart, to find the worker again.
    """

    name: str
    """The name in its handles."""

    places = False
    """True if it finds machines for movable jobs itself, so that they use no resources of this host."""

    @abstractmethod
    def start(self, job_id: str, channel: Channel) -> Handle:
        """Start `python -m backend.worker` on a channel that is open, without waiting for it. What the worker prints
        goes to the channel's log.

        Raises WorkError if it cannot be started; then nothing of it runs, or `sweep` finds it.
        """

    @abstractmethod
    def poll(self, handle: Handle) -> WorkerState:
        """Return whether the worker is there, and its exit code if this launcher observed the end. Called several times
        per second, so it waits for nothing."""

    @abstractmethod
    def cancel(self, handle: Handle, *, force: bool) -> None:
        """Ask the worker to stop, which cleans up and writes a result, or with `force` end it at once. It may be gone
        already."""

    @abstractmethod
    def sweep(self, job_id: str, handle: Handle | None) -> None:
        """End whatever the job's last attempt left running, wherever it is; return when it is gone.

        `handle` is None if the supervisor died between starting the worker and recording it: the job's id must be
        enough.
        """

    def sweep_others(self, live_jobs: Collection[str]) -> None:  # noqa: B027  most launchers have nothing to do
        """End what attempts of this home have left running on this machine, except those of `live_jobs`.

        While no supervisor was here others may have given them up, and their devices are given to other jobs.
        """

    def ended_elsewhere(self, spec: str, handle: Handle) -> bool:
        """Return whether nothing runs any more of an attempt whose supervisor, of another host or home, is gone.

        What another machine runs outlives its supervisor: this asks for its end, without waiting. Call again while it
        returns False.
        """
        return True
