"""A progress that ends a run at a place, as a kill would."""

from __future__ import annotations

from typing import Any

from backend.domain.jobs.progress import NoProgress


class Stopped(Exception):
    """As a kill would."""


class StoppingAt(NoProgress):
    """Ends the run when this much of the phase of that name is done; the `number`-th such phase."""

    def __init__(self, phase: str = "", number: int = 1, done: float = 0) -> None:
        self.wanted, self.number, self.done = phase, number, done
        self.seen: list[str] = []

    def phase(self, name: str, message: str, **_: Any) -> None:
        self.seen.append(name)

    def advance(self, done: float, **_: Any) -> None:
        if self.seen[-1] == self.wanted and self.seen.count(self.wanted) == self.number and done >= self.done:
            raise Stopped
