"""Ends attempts: registers their results, retries or puts aside jobs that failed, and says why a worker exited."""

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

UNSEEN = frozenset({Ending.LOST, Ending.STOPPED, Ending.SUPERVISOR, Ending.NODE})
"""Endings that nobody saw: the job is `lost` rather than `failed` if it is not retried."""
FULL_BYTES = 1 << 20
"""A disk with less free space is full: a result needs a few kB."""
STOPPED = "The worker was stopped from outside, as at the end of a session"


class Finisher:
    """Ends attempts in the store. Every write names the lease of the row as it was read; if a method raises, the job is
    unchanged."""

    def __init__(self, settings: Settings, store: Store, uploads: Uploads) -> None:
        self._settings, self._store, self._uploads = settings, store, uploads

    def fail_or_retry(self, row: JobRow, ending: Ending, sentence: str) -> None:
        """End an attempt that nobody asked to end, and retry the job if the ending is worth it.

        `sentence` has no full stop. Nothing of the attempt may still run. Raises Fenced.
        """
        retries = Terms.model_validate_json(row.terms).retries
        decision = endings.decide_retry(ending, retried=row.retried, strikes=row.strikes, retries=retries)
        state = JobState.LOST if ending in UNSEEN else JobState.FAILED
        if decision.aside:
            aside = f"That was the {decision.strikes}. time in a row, so it was put aside: see the log"
            text = f"{sentence}. {aside}; `whetstone jobs release {row.id}` gives it another try."
            self.end_attempt(row, state, text, ending=ending, strikes=decision.strikes, aside=True)
        elif decision.retry_s is None or row.cancel_requested:
            text = f"{sentence}: resume it." if ending in UNSEEN else f"{sentence.rstrip('.')}."
            self.end_attempt(row, state, text, ending=ending, strikes=decision.strikes)
        else:
            text = f"{sentence.rstrip('.')}: tried again in {span(decision.retry_s)}."
            values = {"retried": row.retried + 1, "strikes": decision.strikes, "ending": ending}
            self.end_attempt(row, JobState.QUEUED, text, after_s=decision.retry_s, **values)

    def requeue_yielded(self, row: JobRow) -> None:
        """Queue a job that made room in its old place, or cancel it if a person asked for that meanwhile. Raises
        Fenced."""
        if row.cancel_requested:
            self.end_attempt(row, JobState.CANCELLED, "The job was cancelled; nothing half-written remains.")
            return
        self.end_attempt(row, JobState.QUEUED, "It was stopped in order, and is queued again.", ending=Ending.ROOM)

    def end_cancelled(self, row: JobRow, worker_sentence: str | None) -> None:
        """End a job that was asked to end. `worker_sentence`: what its worker wrote about it. Raises Fenced."""
        text = worker_sentence or "The job was cancelled; nothing half-written remains."
        if row.ending in endings.TIMEOUTS:
            text = f"Stopped by {row.cause}; nothing half-written remains."
        self.end_attempt(row, JobState.CANCELLED, text, ending=Ending(row.ending or Ending.PERSON), strikes=0)

    def end_attempt(
        self, row: JobRow, state: JobState, sentence: str, *, after_s: float | None = None, **values: Any
    ) -> None:
        """Move the job to `state` with an event that says why. QUEUED lets the next attempt start, after `after_s`
        seconds if given. `values` are other columns of the row. Raises Fenced."""
        # 1. Make the event.
        ending = values.get("ending")
        data = {"state": str(state), "attempt": row.attempt}
        if ending:
            data["ending"] = str(ending)

        # 2. Change the row and append the event in one transaction, under the lease.
        def write(session: Session) -> None:
            lease, columns = leases.read_lease(row), dict(values)
            if after_s is not None:
                columns["not_before"] = leases.clock(session) + timedelta(seconds=after_s)
            if state is JobState.QUEUED:
                leases.requeue(session, lease, **columns)
            else:
                leases.move(session, lease, state, error=sentence, **columns)
            history.append(session, row.id, [Event(kind="state", message=sentence, data=data)])

        self._store.run(write)

    def register(self, row: JobRow, channel: Channel, result: Result) -> bool:
        """Register the result of an attempt that succeeded. Return False while that goes on.

        The result is verified and put in its place outside of any transaction; then one short commit, which counts only
        under the lease, writes its rows. Raises Fenced, NotNow.
        """
        # 1. Verify the result and put it in its place.
        lease, output = leases.read_lease(row), channel.output
        try:
            work = partial(registry.stage, self._settings, self._store, row, output, result.document)
            staged = self._uploads.stage(lease, work)
        except NotPlaced as error:
            return self._wait_for_place(row, error)
        except (WhetstoneError, OSError, ValueError, LookupError, TypeError) as error:
            sentence = f"The job's result could not be registered: {error}"
            self.end_attempt(row, JobState.FAILED, sentence, ending=Ending.FAILED, strikes=0)
            return True
        if staged is None:
            return False

        # 2. Record it, or take it away again if the job is another's by now.
        try:
            self._store.run(partial(self._record, row, staged))
        except (Fenced, NotNow):
            registry.withdraw(self._settings, self._store, row, staged)
            raise
        return True

    def _record(self, row: JobRow, staged: Staged, session: Session) -> None:
        document = staged.record(session)
        values = {"progress": 1.0, "strikes": 0, "retried": 0, "ending": None, "result": json.dumps(document)}
        leases.move(session, leases.read_lease(row), JobState.SUCCEEDED, **values)
        history.append(session, row.id, [Event(kind="state", message="Succeeded.", progress=1.0)])
        queue.begin_waiting(session, row.id, document.get("artifact"))

    def _wait_for_place(self, row: JobRow, error: NotPlaced) -> bool:
        """Let the result wait for its place until somebody cancels the job. Return whether the attempt has ended."""
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


def removal_reason(attempt: str) -> str | None:
    """Return a sentence if somebody removed the attempt's folder while its worker ran, else None."""
    if Path(attempt).is_dir():
        return None
    return (
        f"The job's folder {attempt} was removed while it ran, and its log with it: "
        "resume the job, and leave its folder alone"
    )


def exit_reason(code: int, folder: Path, attempt: str | None = None) -> tuple[Ending, str]:
    """Return why a worker that left no result ended, as an ending and a sentence.

    `code`: its exit code, negative for a signal. `folder`: where jobs are; `attempt`: the attempt's folder in it.
    """
    removal = None if attempt is None else removal_reason(attempt)
    if removal is not None:
        return Ending.DAMAGED, removal
    if code == RESULT_UNWRITTEN or shutil.disk_usage(folder).free < FULL_BYTES:
        return Ending.DISK, str(files.disk_full(folder))
    if code == -9:
        sentence = "The worker was killed (signal 9), as the system does when memory runs out"
        return Ending.CRASHED, f"{sentence}: see the log, then resume the job"
    if code == -signal.SIGTERM:  # it had begun so little that it could not say so itself
        return Ending.STOPPED, STOPPED
    how = f"on signal {-code}" if code < 0 else f"with exit code {code}"
    return Ending.CRASHED, f"The worker ended {how} without a result: see the log, then resume the job"
