"""Signs of life of one attempt's worker. By this process's own clock, in looks: no clock that is set and no pause of
the supervisor itself makes a worker look hung.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.jobs.jobs import Event

WORKING_PERCENT = 2.0
"""Of one core: who uses more is at work, although it says nothing."""
LOOK_S = 2.0
"""The most that one look counts as silence, however long ago the last one was."""


class HangDetector:
    """`silent_s`: the process itself showed nothing for so long. `idle_s`: it said nothing of its work, and did none.
    `watched_s`: it was looked after."""

    def __init__(self, now: float) -> None:
        self._observed_at, self._pulse = now, 0
        self.silent_s = self.idle_s = self.watched_s = 0.0

    def observe(self, pulse: int, events: Sequence[Event], now: float) -> None:
        """`pulse`: as `Channel.pulse`; `events`: those since the last look; `now`: seconds of a monotonic clock."""
        passed, self._observed_at = min(LOOK_S, now - self._observed_at), now
        self.watched_s += passed
        self.silent_s = 0.0 if events or pulse != self._pulse else self.silent_s + passed
        self.idle_s = 0.0 if any(map(_shows_work, events)) else self.idle_s + passed
        self._pulse = pulse

    def hang_reason(self, silent_s: float, idle_s: float | None) -> str | None:
        """Why the worker is taken for hung, where it is; `idle_s` is None for a job that may do nothing."""
        if self.silent_s > silent_s:
            return f"The worker's process showed no sign of life for {silent_s:.0f} s"
        if idle_s is not None and self.idle_s > idle_s:
            return f"The worker said nothing and used no processor for {idle_s:.0f} s"
        return None


def _shows_work(event: Event) -> bool:
    return event.kind != "resource" or event.data.get("cpu_percent", 0.0) > WORKING_PERCENT
