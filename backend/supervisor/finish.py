"""What follows when an attempt ends: its result is registered, or it is tried again, put aside or over, each with its
reason."""

from __future__ import annotations

import json
import shutil
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from sqlmodel import Session

from backend import files
from backend.channel import Channel, Result
from backend.domain.errors import NotNow, WhetstoneError
from backend.domain.figures import span
from backend.domain.jobs import endings
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.jobs import RESULT_UNWRITTEN, Event, JobState
from backend.domain.jobs.terms import Terms
from backend.settings import Settings
from backend.store import history, leases, queue
from backend.store.database import Store
from backend.store.leases import Fenced
from backend.store.tables import JobRow
from backend.supervisor import registry
from backend.supervisor.registry import NotPlaced, Staged
from backend.supervisor.uploads import Uploads

GONE = frozenset({Ending.LOST, Ending.STOPPED, Ending.SUPERVISOR, Ending.NODE})
"""Nobody saw the job fail: it is lost where it is not tried again."""
FULL_BYTES = 1 << 20
"""A disk with less free is full: a result needs a few kB."""
STOPPED = "The worker was stopped from outside, as at the end of a session"


class Finisher:
    """Every write names the lease of the row as it was read; whatever is raised, the job stands as it stood."""

    def __init__(self, settings: Settings, store: Store, uploads: Uploads) -> None:
        self._settings, self._store, self._uploads = settings, store, uploads

    def fail_or_retry(self, row: JobRow, ending: Ending, sentence: str) -> None:
        """An attempt that was not asked to end. `sentence` has no full stop. Nothing of it may run any more. Raises
        Fenced."""
        asked = Terms.model_validate_json(row.terms).retries
        verdict = endings.decide_retry(ending, retried=row.retried, strikes=row.strikes, asked=asked)
        if verdict.aside:
            aside = f"That was the {verdict.strikes}. time in a row, so it was put aside: see the log"
            told = f"{sentence}. {aside}; `whetstone jobs release {row.id}` gives it another try."
            self.end_attempt(row, _state(ending), told, ending=ending, strikes=verdict.strikes, aside=True)
        elif verdict.again_s is None or row.cancel_requested:
            self.end_attempt(row, _state(ending), _way_on(ending, sentence), ending=ending, strikes=verdict.strikes)
        else:
            told = f"{sentence.rstrip('.')}: tried again in {span(verdict.again_s)}."
            again = {"retried": row.retried + 1, "strikes": verdict.strikes, "ending": ending}
            self.end_attempt(row, JobState.QUEUED, told, after_s=verdict.again_s, **again)

    def requeue_yielded(self, row: JobRow) -> None:
        """Queue it again in its old place; cancelled where a person asked for that meanwhile. Raises Fenced."""
        if row.cancel_requested:
            self.end_attempt(row, JobState.CANCELLED, "The job was cancelled; nothing half-written remains.")
            return
        self.end_attempt(row, JobState.QUEUED, "It was stopped in order, and is queued again.", ending=Ending.ROOM)

    def end_cancelled(self, row: JobRow, own: str | None) -> None:
        """As it was asked to. `own`: the worker's word. Raises Fenced."""
        by = f"Stopped by {row.cause}; nothing half-written remains." if row.ending in endings.TIMEOUTS else None
        told = by or own or "The job was cancelled; nothing half-written remains."
        self.end_attempt(row, JobState.CANCELLED, told, ending=Ending(row.ending or Ending.PERSON), strikes=0)

    def end_attempt(
        self, row: JobRow, state: JobState, sentence: str, *, after_s: float | None = None, **values: Any
    ) -> None:
        """The attempt has ended: with QUEUED the next one may start, after `after_s` where that is given. Raises
        Fenced."""
        ending = values.get("ending")
        data = {"state": str(state), "attempt": row.attempt, **({"ending": str(ending)} if ending else {})}

        def write(session: Session) -> None:
            held = leases.read_lease(row)
            due = {} if after_s is None else {"not_before": leases.clock(session) + timedelta(seconds=after_s)}
            if state is JobState.QUEUED:
                leases.requeue(session, held, **due, **values)
            else:
                leases.move(session, held, state, error=sentence, **values)
            history.append(session, row.id, [Event(kind="state", message=sentence, data=data)])

        self._store.run(write)

    def register(self, row: JobRow, channel: Channel, result: Result) -> bool:
        """Verified and put in place outside, then one short commit, which counts only under the lease. False while it
        goes on."""
        held, output = leases.read_lease(row), channel.output
        try:
            work = partial(registry.stage, self._settings, self._store, row, output, result.document)
            staged = self._uploads.stage(held, work)
        except NotPlaced as error:
            return self._not_placed(row, error)
        except (WhetstoneError, OSError, ValueError, LookupError, TypeError) as error:
            sentence = f"The job's result could not be registered: {error}"
            self.end_attempt(row, JobState.FAILED, sentence, ending=Ending.FAILED, strikes=0)
            return True
        if staged is None:
            return False
        try:
            self._store.run(partial(self._record, row, staged))
        except (Fenced, NotNow):
            registry.withdraw(self._settings, self._store, row, staged)
            raise
        return True

    def _record(self, row: JobRow, staged: Staged, session: Session) -> None:
        done, document = {"progress": 1.0, "strikes": 0, "retried": 0, "ending": None}, staged.record(session)
        leases.move(session, leases.read_lease(row), JobState.SUCCEEDED, result=json.dumps(document), **done)
        history.append(session, row.id, [Event(kind="state", message="Succeeded.", progress=1.0)])
        queue.begin_waiting(session, row.id, document.get("artifact"))

    def _not_placed(self, row: JobRow, error: NotPlaced) -> bool:
        """The result waits for its place, until somebody cancels the job."""
        if row.cancel_requested:
            self.end_attempt(
                row, JobState.CANCELLED, f"The job was cancelled while its artifact waited for its place: {error}"
            )
            return True
        event = Event(
            kind="warning", phase="upload", message=f"{error} The artifact is whole here and waits: it is tried again."
        )
        self._store.run(lambda session: history.append(session, row.id, [event]))
        return False


def _state(ending: Ending) -> JobState:
    return JobState.LOST if ending in GONE else JobState.FAILED


def _way_on(ending: Ending, sentence: str) -> str:
    """With what a person can do now, where the sentence does not say so itself."""
    return f"{sentence}: resume it." if ending in GONE else f"{sentence.rstrip('.')}."


def removal_reason(attempt: str) -> str | None:
    """What to say where somebody removed the attempt's folder while its worker ran; None where it is there."""
    if Path(attempt).is_dir():
        return None
    return f"The job's folder {attempt} was removed while it ran, and its log with it: resume the job, and leave its folder alone"


def exit_reason(code: int, folder: Path, attempt: str | None = None) -> tuple[Ending, str]:
    """Of a worker that left no result in `attempt`, which lies in `folder`, and how that ending is called. `code`:
    negative for a signal."""
    if attempt is not None and (gone := removal_reason(attempt)) is not None:
        return Ending.DAMAGED, gone
    if code == RESULT_UNWRITTEN or shutil.disk_usage(folder).free < FULL_BYTES:
        return Ending.DISK, str(files.disk_full(folder))
    if code == -9:
        killed = "The worker was killed (signal 9), as the system does when memory runs out: see the log, then resume the job"
        return Ending.CRASHED, killed
    if code == -signal.SIGTERM:  # it had begun so little that it could not say so itself
        return Ending.STOPPED, STOPPED
    how = f"on signal {-code}" if code < 0 else f"with exit code {code}"
    return Ending.CRASHED, f"The worker ended {how} without a result: see the log, then resume the job"
