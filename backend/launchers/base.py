"""What a launcher is: it starts a worker somewhere, sees whether it is there, and can stop it. It knows nothing of the
store.

A launcher is one module with one class, and a line in `launchers.choose_launcher`. Events, log, result and output are none of
its business: they pass through the job's channel, whose address the worker is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

from backend.channel import Channel
from backend.domain.jobs.jobs import Handle, WorkerState


class Launcher(ABC):
    """One kind of place where workers run, perhaps without this machine's disk.

    A handle is what `start` gave: opaque to everybody else, kept in the job's row, and enough for another process of
    the same launcher, after a restart, to find the worker again.
    """

    name: str
    """As handles carry it."""

    places = False
    """Whether it finds machines for movable jobs itself, so that they take nothing of this host."""

    @abstractmethod
    def start(self, job_id: str, channel: Channel) -> Handle:
        """Start `python -m backend.worker` on a channel that is open, and return without waiting for it. What the
        worker prints goes to the channel's log.

        Raises WorkError where it cannot be started; nothing of it may run then, or `sweep` must find it.
        """

    @abstractmethod
    def poll(self, handle: Handle) -> WorkerState:
        """Whether the worker is there; its exit code where this launcher observed the end. Called several times a
        second, so it waits for nothing and nobody."""

    @abstractmethod
    def cancel(self, handle: Handle, *, force: bool) -> None:
        """Ask the worker to stop, which cleans up and writes a result, or with `force` end it at once. It may be gone
        already."""

    @abstractmethod
    def sweep(self, job_id: str, handle: Handle | None) -> None:
        """End whatever the job's last attempt left running, wherever it is; return when it is gone.

        `handle` is None where the supervisor died between starting the worker and recording it: the job's id must be
        enough.
        """

    def sweep_others(self, kept: Collection[str]) -> None:  # noqa: B027  most places end what nobody asks for by themselves
        """End what attempts of this home have left running on this machine, of jobs that are none of these: while no
        supervisor was here others may have given them up, and their devices are given out again."""

    def ended_elsewhere(self, spec: str, handle: Handle) -> bool:
        """Whether nothing runs any more of an attempt whose supervisor, of another host or home, is gone. What runs
        outlives it where another machine runs it: asks for its end, without waiting; ask again while it is False."""
        return True
