"""The protocol by which work reports its progress: phases with shares of the whole, done/total, rate and time left.

Engines, serving and evaluation are given a `Progress`; the worker's implementation writes job events.
"""

from __future__ import annotations

from typing import Any, Protocol


class Progress(Protocol):
    def phase(
        self, name: str, message: str, *, total: float | None = None, unit: str | None = None, weight: float = 1.0
    ) -> None:
        """Begin a phase. `weight` is its expected share of the job relative to the other phases."""

    def advance(self, done: float, **data: Any) -> None:
        """Report how many units of the phase's total are done; cheap, and written at most a few times a second."""

    def note(self, message: str, **data: Any) -> None: ...

    def warn(self, message: str, **data: Any) -> None: ...

    def point(self, **data: Any) -> None:
        """A measurement for live charts, labelled approximate there."""


class NoProgress:
    """A Progress that reports nothing, for tests and library use."""

    def _nothing(self, *arguments: Any, **data: Any) -> None:
        return None

    phase = advance = note = warn = point = _nothing
