"""The supervisor's log: one line for each committed change of a job's state, and for what workers warn of."""

from __future__ import annotations

import logging

from backend import logs
from backend.domain.jobs.jobs import JobState
from backend.store.database import Change, EventsAppended, StateChanged

LEVELS = {JobState.FAILED: logging.ERROR, JobState.LOST: logging.WARNING}
EVENT_LEVELS = {"warning": logging.WARNING, "error": logging.ERROR}


class JobLog:
    """Writes what the store committed to the log."""

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}

    def observe(self, change: Change) -> None:
        if isinstance(change, StateChanged):
            self._attempts[change.job] = change.attempt
            message = change.error or f"Job {change.job} is {change.state}."
            level = LEVELS.get(change.state, logging.INFO)
            logs.log_event(change.state, message, job=change.job, attempt=change.attempt, level=level)
        elif isinstance(change, EventsAppended):
            for event in change.events:
                if event.kind in EVENT_LEVELS and event.message:
                    attempt, level = self._attempts.get(change.job), EVENT_LEVELS[event.kind]
                    logs.log_event(event.kind, event.message, job=change.job, attempt=attempt, level=level)
