"""Reports progress as job events: phases weighted into one bar, a smoothed rate, and the time left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from backend.channel import JobChannel
from backend.domain.jobs.jobs import Event

LOG_LINES = 10
"""Most progress lines in the log per phase."""


class ChannelProgress:
    """Reports the progress of a job over its channel.

    `expected` is the sum of the weights of all phases; phases beyond it extend it. `seconds` are predicted durations by
    phase, which replace the weights the first time a phase begins.
    """

    def __init__(self, channel: JobChannel, expected: float, seconds: Mapping[str, float] | None = None) -> None:
        self._seconds = dict(seconds or {})
        self._channel, self._expected = channel, max(sum(self._seconds.values()) or expected, 1e-9)
        self._before = self._weight = 0.0
        self._name: str | None = None
        self._unprinted: float | None = None
        """The last progress of the phase that is not in the log yet."""
        self._lines_printed = 0
        self._total: float | None = None
        self._unit: str | None = None
        self._begun = self._phase_begun = time.monotonic()

    def phase(
        self, name: str, message: str, *, total: float | None = None, unit: str | None = None, weight: float = 1.0
    ) -> None:
        """Begin a phase; what the one before did not reach counts as done."""
        # 1. Close the phase before, and let a predicted time replace the weight.
        self._print_last()
        weight = self._seconds.pop(name, weight)
        self._before += self._weight
        self._expected = max(self._expected, self._before + weight)
        self._name, self._total, self._unit, self._weight = name, total, unit, weight
        self._phase_begun, self._lines_printed = time.monotonic(), 0

        # 2. Report the beginning.
        overall = self._overall(0.0)
        print(message, flush=True)
        self._channel.emit(
            Event(
                kind="phase",
                phase=name,
                message=message,
                done=0.0,
                total=total,
                unit=unit,
                progress=overall,
                eta_s=self._left(overall),
            )
        )

    def advance(self, done: float, **data: Any) -> None:
        """Report how far the phase is, in its unit."""
        share = min(1.0, done / self._total) if self._total else 0.0
        seconds = time.monotonic() - self._phase_begun
        overall = self._overall(share)
        self._unprinted = done

        # 1. Print a line at every tenth of the phase.
        if int(share * LOG_LINES) > self._lines_printed:
            self._lines_printed = int(share * LOG_LINES)
            self._print_last()

        # 2. Report to the supervisor; only the end of a phase is written at once.
        event = Event(
            kind="progress",
            phase=self._name,
            done=done,
            total=self._total,
            unit=self._unit,
            progress=overall,
            rate=done / seconds if seconds > 0 else None,
            eta_s=self._left(overall),
            data=data,
        )
        self._channel.emit(event, urgent=share >= 1.0)

    def _print_last(self) -> None:
        """Print how far the phase is; the next phase calls this too, since one may end before its total."""
        if self._unprinted is not None and self._total:
            print(f"{self._name}: {self._unprinted:g} of {self._total:g} {self._unit or 'steps'}", flush=True)
        self._unprinted = None

    def note(self, message: str, **data: Any) -> None:
        print(message, flush=True)
        self._channel.emit(Event(kind="note", phase=self._name, message=message, data=data))

    def warn(self, message: str, **data: Any) -> None:
        print(f"warning: {message}", flush=True)
        self._channel.emit(Event(kind="warning", phase=self._name, message=message, data=data))

    def point(self, **data: Any) -> None:
        self._channel.emit(Event(kind="point", phase=self._name, data=data), urgent=False)

    def _overall(self, share: float) -> float:
        return min(1.0, (self._before + self._weight * share) / self._expected)

    def _left(self, overall: float) -> float | None:
        """Return the seconds left if the rest goes as fast as the job so far; None during the first hundredth."""
        if overall < 0.01:
            return None
        return (time.monotonic() - self._begun) * (1 - overall) / overall
