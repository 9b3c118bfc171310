"""The supervisor's loop. One a home (held by a file lock); everything it knows stands in the store, so it can die at any time.

A restarted supervisor finds its workers again by their handles, carries on, and can still cancel them.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import time
from pathlib import Path

from backend import channel, files, launchers, processes
from backend.domain.errors import WhetstoneError
from backend.domain.jobs.jobs import LIVE, UNSAID, Event, Handle, JobState, Outcome
from backend.settings import Settings
from backend.store import history, queue
from backend.store.database import Store
from backend.store.tables import JobRow, SupervisorRow, now
from backend.supervisor.registry import register

GRACE_SECONDS = 20.0
"""From SIGTERM to SIGKILL of a cancelled worker: long enough to stop a vLLM server in order."""


FULL_BYTES = 1 << 20
"""A disk with less free is full: a result needs a few kB."""
YIELDING_ATTEMPTS = 3
"""A job that yields is queued again when it is lost, until it was tried so often."""


class Supervisor:
    """`tick` is one round: heartbeat, look after live jobs, start what may start."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.launcher = launchers.chosen(settings)
        self.row = SupervisorRow(
            id="s-" + secrets.token_hex(4),
            host=socket.gethostname(),
            pid=os.getpid(),
            process_started=processes.started(os.getpid()),
        )
        self._beaten = 0.0
        self._asked: dict[str, float] = {}
        self._unstarted: dict[str, str] = {}
        """Why a job that is `starting` was not started, until its row says so."""

    def tick(self, *, start: bool = True) -> bool:
        """One round; True while any job is live or queued."""
        self._beat()
        live = self._live()
        for row in live:
            self._look_after(row)
        started = self._start_next() if start else False
        return bool(live) or started or self._has_queued()

    def stop(self) -> None:
        """Cancel what runs (what yields goes back into the queue), wait for it, and say that this supervisor has gone."""
        for row in self._live():
            if row.yields and not row.cancel_requested:
                self._make_room(row, "The supervisor is being stopped: this goes back into the queue.")
            else:
                self._mark_cancel(row.id)
        deadline = time.monotonic() + GRACE_SECONDS + 10
        while self._live() and time.monotonic() < deadline:
            self.tick(start=False)
            time.sleep(0.1)
        self.row.stopped = True
        with self.store.session() as session:
            queue.heartbeat(session, self.row)

    def _beat(self) -> None:
        if time.monotonic() - self._beaten >= queue.HEARTBEAT_SECONDS:
            with self.store.session() as session:
                queue.heartbeat(session, self.row)
            self._beaten = time.monotonic()

    def _live(self) -> list[JobRow]:
        with self.store.read() as session:
            return history.queued(session, [str(state) for state in LIVE])

    def _has_queued(self) -> bool:
        with self.store.read() as session:
            return bool(history.queued(session, [str(JobState.QUEUED)]))

    def _mark_cancel(self, job_id: str) -> None:
        with self.store.session() as session:
            queue.get(session, job_id).cancel_requested = True

    def _make_room(self, row: JobRow, sentence: str) -> None:
        with self.store.session() as session:
            fresh = queue.get(session, row.id)
            if fresh.state != JobState.RUNNING:  # ended meanwhile, or is making room already
                return
            queue.make_room(fresh)
            history.append(session, fresh, [Event(kind="state", message=sentence)])

    def _yield_to_own(self) -> None:
        with self.store.read() as session:
            found = queue.yielding(session)
        for row in found:
            self._make_room(row, "Makes room for a job of your own: this goes back into the queue and starts again after it.")

    def _start_next(self) -> bool:
        self._yield_to_own()
        with self.store.session() as session:
            row = queue.claimable(session)
            if row is None or not queue.claim(session, row.id, self.row.id):
                return False
        try:
            self._start(row)
        except (WhetstoneError, OSError) as error:
            self._unstarted[row.id] = f"The job was not started. {error}"
        return True

    def _start(self, row: JobRow) -> None:
        opened = channel.of(self.settings, row.id)
        opened.open(row.spec)
        handle = self.launcher.start(row.id, opened)
        with self.store.session() as session:
            fresh = queue.get(session, row.id)
            fresh.handle, fresh.segment = handle.model_dump_json(), 0
            queue.move(fresh, JobState.RUNNING)
            message = f"Started as {handle.place}, attempt {fresh.attempt}."
            history.append(session, fresh, [Event(kind="state", message=message)])

    def _look_after(self, row: JobRow) -> None:
        if row.handle is None:
            self._look_after_unstarted(row)
            return
        handle = Handle.model_validate_json(row.handle)
        outcome = self.launcher.poll(handle)  # before the events: what was written before the exit is then carried
        self._carry(row)
        if not outcome.alive:
            self._finish(row, handle, outcome)
        elif row.cancel_requested or queue.is_making_room(row):
            self._cancel(row, handle)

    def _look_after_unstarted(self, row: JobRow) -> None:
        """It was not started, or a supervisor died before its worker was recorded: the job's id finds whatever did start."""
        self._sweep(row, None)
        if row.id in self._unstarted:
            self._close(row.id, JobState.FAILED, self._unstarted[row.id])
            del self._unstarted[row.id]
        else:
            self._lose(row, "The supervisor ended while starting this job")

    def _sweep(self, row: JobRow, handle: Handle | None) -> None:
        self.launcher.sweep(row.id, handle)
        channel.of(self.settings, row.id).clear()

    def _carry(self, row: JobRow) -> None:
        segments = channel.of(self.settings, row.id).segments(row.segment)
        if not segments:
            return
        with self.store.session() as session:
            fresh = queue.get(session, row.id)
            for number, events in segments:
                history.append(session, fresh, events)
                fresh.segment = number

    def _cancel(self, row: JobRow, handle: Handle) -> None:
        asked = self._asked.get(row.id)
        if asked is None:
            self._asked[row.id] = time.monotonic()
            if row.state != JobState.CANCELLING:
                with self.store.session() as session:
                    queue.move(queue.get(session, row.id), JobState.CANCELLING)
            self.launcher.cancel(handle, force=False)
        elif time.monotonic() - asked > GRACE_SECONDS:
            self.launcher.cancel(handle, force=True)

    def _finish(self, row: JobRow, handle: Handle, outcome: Outcome) -> None:
        """The worker is gone: what it said of itself counts first, then what was seen of its exit. It has ended, for whoever
        looks, once nothing of it is left."""
        self._asked.pop(row.id, None)
        result = channel.of(self.settings, row.id).result()
        if result is not None and result["outcome"] == "succeeded":
            self._register(row, result["document"])
            self._sweep(row, handle)
            return
        self._sweep(row, handle)
        if queue.is_making_room(row):
            self._put_back(row, "It was stopped in order")
        elif result is not None:
            state = JobState.CANCELLED if result["outcome"] == "cancelled" else JobState.FAILED
            self._close(row.id, state, result["error"])
        elif row.state == JobState.CANCELLING or row.cancel_requested:
            self._close(row.id, JobState.CANCELLED, "The job was cancelled; nothing half-written remains.")
        elif outcome.code is not None:
            self._close(row.id, JobState.FAILED, exit_sentence(outcome.code, self.settings.jobs))
        else:
            self._lose(row, "The worker is gone and nobody saw it end")

    def _lose(self, row: JobRow, sentence: str) -> None:
        """Nobody looks after a job that yields, so it looks after itself, a few times."""
        if row.yields and row.attempt < YIELDING_ATTEMPTS and not row.cancel_requested:
            self._put_back(row, sentence)
        else:
            self._close(row.id, JobState.LOST, f"{sentence}: resume it.")

    def _put_back(self, row: JobRow, sentence: str) -> None:
        """Queue it again, swept before: the next attempt carries the same mark."""
        with self.store.session() as session:
            fresh = queue.put_back(session, row.id)
            message = f"{sentence}, and is {'queued again' if fresh.state == JobState.QUEUED else fresh.state}."
            history.append(session, fresh, [Event(kind="state", message=message, data={"state": fresh.state})])

    def _register(self, row: JobRow, document: dict[str, object]) -> None:
        output = channel.of(self.settings, row.id).output
        try:
            with self.store.session() as session:
                fresh = queue.get(session, row.id)
                fresh.result = json.dumps(register(session, self.settings, fresh, output, document))
                fresh.progress, fresh.message = 1.0, "Done."
                queue.move(fresh, JobState.SUCCEEDED)
                history.append(session, fresh, [Event(kind="state", message="Succeeded.", progress=1.0)])
        except (WhetstoneError, OSError, ValueError) as error:
            self._close(row.id, JobState.FAILED, f"The job's result could not be registered: {error}")

    def _close(self, job_id: str, state: JobState, sentence: str) -> None:
        with self.store.session() as session:
            row = queue.get(session, job_id)
            queue.move(row, state)
            row.error = sentence
            row.finished_at = now()
            history.append(session, row, [Event(kind="state", message=sentence, data={"state": str(state)})])


def exit_sentence(code: int, folder: Path) -> str:
    """Of a worker that left no result in `folder`."""
    if code == UNSAID or shutil.disk_usage(folder).free < FULL_BYTES:
        return str(files.disk_full(folder))
    if code == -9:
        return "The worker was killed (signal 9), as the system does when memory runs out: see the log, then resume the job."
    how = f"on signal {-code}" if code < 0 else f"with exit code {code}"
    return f"The worker ended {how} without a result: see the log, then resume the job."
