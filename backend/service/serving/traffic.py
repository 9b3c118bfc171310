"""The traffic of the servers on this machine: tokens since they started, and tokens/s in the last two minutes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import Event
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.tables import EventRow

WINDOW_S, SLOT_S = 120, 5
"""Seconds that a sparkline shows, and of each of its points."""
READ_EVERY_S = 2.0
"""Seconds between two readings of the servers' counters (`worker.kinds.serve`), recorded if they have changed."""


class Traffic(Frozen):
    """Tokens of one server since it started, and output tokens/s by slot of SLOT_S, the oldest first."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    rates: tuple[float, ...] = ()

    @property
    def tokens_per_s(self) -> float:
        """Return output tokens/s in the last two slots: the last one may still lack a reading."""
        return sum(self.rates[-2:]) / 2


def read_traffic(workspace: Workspace, job_id: str, *, now: datetime | None = None) -> dict[str, Traffic]:
    """Return the traffic of each source that the job serves and that was asked since it started."""
    with workspace.store.read() as session:
        limit = int(WINDOW_S / READ_EVERY_S) + 1
        newest = list(history.list_newest(session, job_id, EventRow.kind == "progress", limit=limit))
    return sum_up(newest[::-1], now or datetime.now(UTC), from_the_start=len(newest) < limit)


def sum_up(readings: Sequence[Event], now: datetime, *, from_the_start: bool) -> dict[str, Traffic]:
    """Return the traffic of each source from the readings of the servers' counters, in order of time.

    A reading follows a change of the counters, so what was generated since the one before was generated in the last
    READ_EVERY_S seconds, however long nobody asked. `from_the_start`: none came before the first of these.
    """
    # 1. The tokens of each reading fall into the slot of their time.
    slots = WINDOW_S // SLOT_S
    rates: dict[str, list[float]] = {}
    last: dict[str, dict[str, float]] = {}
    start = now - timedelta(seconds=WINDOW_S)
    for reading in readings:
        for source, counters in reading.data.get("served", {}).items():
            before = last.get(source, {}).get("generation_tokens", 0.0)
            slot = int((reading.at - start).total_seconds() // SLOT_S)
            if (from_the_start or source in last) and 0 <= slot < slots:
                by_slot = rates.setdefault(source, [0.0] * slots)
                by_slot[slot] += max(0.0, counters.get("generation_tokens", 0.0) - before) / SLOT_S
            last[source] = counters
    # 2. The counters of the last reading are those since the start.
    return {
        source: Traffic(
            prompt_tokens=int(counters.get("prompt_tokens", 0)),
            generated_tokens=int(counters.get("generation_tokens", 0)),
            rates=tuple(rates.get(source, [0.0] * slots)),
        )
        for source, counters in last.items()
    }
