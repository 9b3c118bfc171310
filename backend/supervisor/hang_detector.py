"""Detects hung workers. Silence is counted per round of the supervisor, by this machine's monotonic clock, so neither a
clock that is set nor a pause of the supervisor makes a worker look hung."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.jobs.jobs import Event

WORKING_PERCENT = 2.0
"""Percent of one core: a worker that uses more is at work, although it reports nothing."""
LONGEST_ROUND_S = 2.0
"""The most that one round counts as silence, however long ago the last one was."""


class HangDetector:
    """Counts the time for which one worker shows no sign of life."""

    def __init__(self, now: float) -> None:
        self._observed_s, self._pulse = now, 0
        self.silent_s = 0.0
        """Seconds for which the process itself showed nothing."""
        self.idle_s = 0.0
        """Seconds for which it reported no work and used no processor."""
        self.watched_s = 0.0
        """Seconds for which it was observed."""

    def observe(self, pulse: int, events: Sequence[Event], now: float) -> None:
        """Count one round. `pulse`: as `Channel.pulse`; `events`: those since the last round; `now`: seconds of a
        monotonic clock."""
        passed, self._observed_s = min(LONGEST_ROUND_S, now - self._observed_s), now
        self.watched_s += passed
        if events or pulse != self._pulse:
            self.silent_s = 0.0
        else:
            self.silent_s += passed
        if any(_shows_work(event) for event in events):
            self.idle_s = 0.0
        else:
            self.idle_s += passed
        self._pulse = pulse

    def hang_reason(self, silent_s: float, idle_s: float | None) -> str | None:
        """Return why the worker counts as hung, or None. `idle_s`: None for a job that may do nothing."""
        if self.silent_s > silent_s:
            return f"The worker's process showed no sign of life for {silent_s:.0f} s"
        if idle_s is not None and self.idle_s > idle_s:
            return f"The worker said nothing and used no processor for {idle_s:.0f} s"
        return None


def _shows_work(event: Event) -> bool:
    return event.kind != "resource" or event.data.get("cpu_percent", 0.0) > WORKING_PERCENT
