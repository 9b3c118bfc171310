"""What a launcher is: it starts a worker somewhere, reads its channel, and can stop it. It knows nothing of the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from backend.domain.jobs.jobs import Event, Handle, Outcome


class Launcher(ABC):
    """One kind of place where workers run. Jobs are named by id; everything else stands in the channel and the handle."""

    name: str

    @abstractmethod
    def start(self, job_id: str, spec: str) -> Handle:
        """Open a fresh channel with that specification (JSON) and start a worker on it."""

    @abstractmethod
    def segments(self, job_id: str, after: int) -> list[tuple[int, list[Event]]]:
        """Event segments numbered above `after`, in order."""

    @abstractmethod
    def result(self, job_id: str) -> dict[str, Any] | None:
        """The result document, or None while there is none."""

    @abstractmethod
    def poll(self, handle: Handle) -> Outcome:
        """Whether the worker is there; its exit code where it was observed."""

    @abstractmethod
    def cancel(self, handle: Handle, *, force: bool) -> None:
        """Ask the worker to stop (it cleans up), or with `force` end it at once."""

    @abstractmethod
    def sweep(self, job_id: str, handle: Handle | None) -> int:
        """End every process the job left behind and remove its unpublished work; how many processes there were."""
