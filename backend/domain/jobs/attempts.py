"""A job's attempts, from its events: when each began, where, when it ended and why."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from backend.domain.frozen import Frozen
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.jobs import Event, JobState


class Attempt(Frozen):
    """`began` None: it never started. `ending` and `ended` None: it goes on, or succeeded."""

    number: int
    began: datetime | None = None
    place: str | None = None
    host: str | None = None
    ended: datetime | None = None
    ending: Ending | None = None
    sentence: str | None = None


def list_attempts(events: Iterable[Event]) -> list[Attempt]:
    """Return the attempts in order; a job that was only ever queued has none."""
    attempts: dict[int, Attempt] = {}
    for event in events:
        # Events without a number are of the job itself.
        number, state = event.data.get("attempt"), event.data.get("state")
        if event.kind != "state" or not isinstance(number, int):
            continue
        attempt = attempts.get(number, Attempt(number=number))
        # An attempt that runs has a place; any other state of it is its end.
        if state == JobState.RUNNING:
            where = {"place": event.data.get("place"), "host": event.data.get("host")}
            attempts[number] = attempt.model_copy(update={"began": event.at, **where})
        else:
            ending = event.data.get("ending")
            how = {"ended": event.at, "ending": Ending(ending) if ending else None, "sentence": event.message}
            attempts[number] = attempt.model_copy(update=how)
    return [attempts[number] for number in sorted(attempts)]
