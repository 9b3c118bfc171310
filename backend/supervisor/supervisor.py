"""The supervisor's loop. One a home (held by a file lock), any number on one database; it can die between any two statements.

What it knows stands in the store: a restarted supervisor finds its workers again by their handles, carries on, and can still
cancel them. Whatever it writes of a job names the lease that it holds (`store.leases`), so that a supervisor which was thought
gone changes nothing when it comes back.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlmodel import Session

from backend import channel, launchers, processes
from backend.channel import Channel, ChannelDamaged, Result
from backend.domain.errors import NotNow, WhetstoneError
from backend.domain.jobs.jobs import LIVE, Event, Handle, JobKind, JobState, Outcome
from backend.launchers.base import Launcher
from backend.settings import Settings
from backend.store import history, leases, queue
from backend.store.database import Store
from backend.store.leases import Fenced, Lease
from backend.store.tables import JobRow, SupervisorRow
from backend.supervisor import registry
from backend.supervisor.endings import exit_sentence
from backend.supervisor.registry import NotPlaced
from backend.supervisor.staging import Staging
from backend.supervisor.vitals import Vitals

GRACE_SECONDS = 20.0
"""From SIGTERM to SIGKILL of a cancelled worker: long enough to stop a vLLM server in order."""
MOST_ATTEMPTS = 3
"""A job that goes back into the queue by itself does so until it was tried so often."""


@dataclass
class Run:
    """What is known beside the store of a job that this supervisor has."""

    lease: Lease
    vitals: Vitals
    handle: Handle | None = None
    """Of a worker that was started and is not recorded yet."""
    unstarted: str | None = None
    """Why it was not started, until its row says so."""
    asked: float | None = None
    """When the worker was asked to stop."""


class Supervisor:
    """`tick` is one round: look after what it has, give up what others lost, start what may start. `beat` renews its leases."""

    def __init__(
        self, settings: Settings, store: Store, launcher: Launcher | None = None, *, host: str | None = None,
        monotonic: Callable[[], float] = time.monotonic, beside: bool = False,
    ) -> None:  # fmt: skip
        """`beside`: results are put in their place in threads of their own."""
        self.settings, self.store, self._now = settings, store, monotonic
        self.launcher = launcher or launchers.chosen(settings)
        self.row = SupervisorRow(
            id="s-" + secrets.token_hex(4), host=host or socket.gethostname(), home=str(settings.home), pid=os.getpid(),
            process_started=processes.started(os.getpid()),
        )  # fmt: skip
        self._runs: dict[str, Run] = {}
        self._staging = Staging(beside=beside, monotonic=monotonic)
        self._late: dict[Lease, float] = {}
        """Others' leases that have run out, and since when this supervisor sees so."""
        self.lost = 0
        """Jobs of its own that others took over."""

    def begin(self) -> None:
        """Take over what an earlier supervisor of this home left. Whoever calls it holds the home's lock."""
        self.store.run(lambda session: leases.adopt(session, self.row))
        self.beat()

    def beat(self) -> None:
        """To be called every HEARTBEAT_SECONDS, from a thread of its own: a round may take long."""
        self.store.run(lambda session: leases.renew(session, self.row))

    def tick(self, *, start: bool = True) -> bool:
        """One round; True while any job is its own or queued."""
        own = self._own()
        self._drop_lost(own)
        for row in own:
            self._guarded(row)
        self._give_up_late()
        started = self._start_next() if start else False
        with self.store.read() as session:
            return bool(own) or started or queue.any_queued(session)

    def stop(self) -> None:
        """Hand over: workers go on, and the next supervisor of this home takes them up. What yields goes back into the queue."""
        deadline = self._now() + GRACE_SECONDS + 10
        for row in self._own():
            if row.yields and not row.cancel_requested:
                self._make_room(row, "The supervisor is being stopped: this goes back into the queue.")
        while self._now() < deadline and any(self._unsettled(row) for row in self._own()):
            self.tick(start=False)
            time.sleep(0.1)
        self.store.run(self._hand_over)

    def _hand_over(self, session: Session) -> None:
        told = Event(kind="state", message="The supervisor was stopped: the worker goes on, and the next one takes it up.")
        for row in leases.owned(session, self.row):
            history.append(session, row.id, [told])
        leases.hand_over(session, self.row)

    def _unsettled(self, row: JobRow) -> bool:
        return row.state == JobState.STARTING or row.yields

    def _own(self) -> list[JobRow]:
        with self.store.read() as session:
            return leases.owned(session, self.row)

    def _drop_lost(self, own: list[JobRow]) -> None:
        """A job that another has taken, or that has ended, is none of this supervisor's: its worker goes."""
        kept = {leases.lease(row) for row in own}
        for job_id, run in [(job_id, run) for job_id, run in self._runs.items() if run.lease not in kept]:
            self._sweep(run.lease, run.handle)
            del self._runs[job_id]
            self.lost += 1

    def _guarded(self, row: JobRow) -> None:
        """What is wrong with one job (its channel, a locked database, a full disk) is no other's trouble, and is tried again."""
        try:
            self._look_after(row)
        except Fenced as error:
            logging.warning("%s", error)
        except ChannelDamaged as error:
            self._abandon(row, str(error))
        except (WhetstoneError, OSError) as error:
            logging.error("%s: %s", row.id, error)

    def _give_up_late(self) -> None:
        """Jobs of other hosts or homes whose supervisor has gone: their channel is out of reach.

        A lease that the database's clock calls late must stay so for the length of one by this machine's too, since either clock
        may be set.
        """
        with self.store.read() as session:
            found = {leases.lease(row): row for row in leases.expired(session, self.row)}
        self._late = {held: self._late.get(held, self._now()) for held in found}
        for held, since in self._late.items():
            if self._now() - since > leases.LEASE_SECONDS:
                where = f"{found[held].host} ({found[held].home})"
                self._guard(self._lose, found[held], f"The supervisor on {where} is gone, and its worker with it")

    def _guard(self, act: Callable[[JobRow, str], None], row: JobRow, sentence: str) -> None:
        try:
            act(row, sentence)
        except Fenced as error:
            logging.warning("%s", error)

    def _make_room(self, row: JobRow, sentence: str) -> None:
        def write(session: Session) -> None:
            queue.make_room(session, row)
            history.append(session, row.id, [Event(kind="state", message=sentence)])

        if row.state == JobState.RUNNING:
            self._guard(lambda _, __: self.store.run(write), row, sentence)

    def _start_next(self) -> bool:
        with self.store.read() as session:
            found = queue.yielding(session, self.row.host)
        for row in found:
            if row.supervisor == self.row.id:
                told = "Makes room for a job of your own: this goes back into the queue and starts again after it."
                self._make_room(row, told)
        claimed = self.store.run(self._claim)
        if claimed is None:
            return False
        row, held = claimed
        run = self._runs[row.id] = Run(held, Vitals(self._now()))
        opened = self._channel(held)
        try:
            opened.open(row.spec)
            run.handle = self.launcher.start(row.id, opened)
        except (WhetstoneError, OSError) as error:
            run.unstarted = f"The job was not started. {error}"
            return True
        try:
            self._record(run)
        except (Fenced, NotNow) as error:  # taken over while it started: the next round ends its worker
            logging.warning("%s", error)
        return True

    def _claim(self, session: Session) -> tuple[JobRow, Lease] | None:
        row = queue.claimable(session, self.row.host)
        held = leases.claim(session, row, self.row) if row else None
        return (row, held) if row and held else None

    def _record(self, run: Run) -> None:
        """The worker's handle; where the database does not take it now, it is kept and offered again."""
        handle = run.handle
        assert handle is not None

        def write(session: Session) -> None:
            leases.move(session, run.lease, JobState.RUNNING, handle=handle.model_dump_json())
            told = f"Started as {handle.place}, attempt {run.lease.attempt}."
            history.append(session, run.lease.job, [Event(kind="state", message=told)])

        self.store.run(write)

    def _look_after(self, row: JobRow) -> None:
        held = leases.lease(row)
        run = self._runs.setdefault(row.id, Run(held, Vitals(self._now())))
        if row.handle is None:
            self._look_after_unstarted(row, run)
            return
        run.handle = handle = Handle.model_validate_json(row.handle)
        outcome = self.launcher.poll(handle)  # before the events: what was written before the exit is then carried
        events = self._carry(row, held)
        run.vitals.look(self._channel(held).pulse(), events, self._now())
        if not outcome.alive:
            self._finish(row, handle, outcome)
        elif row.cancel_requested or queue.is_making_room(row):
            self._cancel(row, run, handle)
        elif hung := run.vitals.hung(self.settings.silent_s, None if row.kind == JobKind.SERVE else self.settings.idle_s):
            self._abandon(row, f"{hung}, so it was ended: see the log, then resume the job.")

    def _look_after_unstarted(self, row: JobRow, run: Run) -> None:
        if run.handle is not None:
            self._record(run)
        elif run.unstarted is not None:
            self._sweep(run.lease, None)
            self._close(row, JobState.FAILED, run.unstarted)
        else:  # a supervisor died before its worker was recorded: the job's id finds whatever did start
            self._sweep(run.lease, None)
            self._lose(row, "The supervisor ended while starting this job", again=True)

    def _channel(self, held: Lease) -> Channel:
        return channel.of(self.settings, held.job, held.attempt)

    def _sweep(self, held: Lease, handle: Handle | None) -> None:
        self.launcher.sweep(held.job, handle)
        self._channel(held).clear()

    def _carry(self, row: JobRow, held: Lease) -> list[Event]:
        segments = self._channel(held).segments(row.segment)
        events = [event for _, found in segments for event in found]

        def write(session: Session) -> None:
            leases.change(session, held, LIVE, segment=segments[-1][0])
            history.append(session, row.id, events)

        if segments:
            self.store.run(write)
        return events

    def _cancel(self, row: JobRow, run: Run, handle: Handle) -> None:
        if run.asked is None:
            if row.state == JobState.RUNNING:
                self.store.run(lambda session: leases.move(session, run.lease, JobState.CANCELLING))
            run.asked = self._now()
            self.launcher.cancel(handle, force=False)
        elif self._now() - run.asked > GRACE_SECONDS:
            self.launcher.cancel(handle, force=True)

    def _finish(self, row: JobRow, handle: Handle, outcome: Outcome) -> None:
        """The worker is gone: what it said of itself counts first, then what was seen of its exit. It has ended, for whoever
        looks, once nothing of it is left."""
        held = leases.lease(row)
        result = self._channel(held).result()
        if result is not None and result.outcome == "succeeded":
            self.launcher.sweep(row.id, handle)
            if self._register(row, result):
                self._channel(held).clear()
            return
        self._sweep(held, handle)
        if queue.is_making_room(row):
            self._put_back(row, "It was stopped in order")
        elif row.state == JobState.CANCELLING or row.cancel_requested:
            own = result.error if result is not None and result.outcome == "cancelled" else None
            self._close(row, JobState.CANCELLED, own or "The job was cancelled; nothing half-written remains.")
        elif result is not None and result.outcome == "cancelled":
            self._lose(row, "The worker was stopped from outside, as at the end of a session", again=True)
        elif result is not None:
            self._close(row, JobState.FAILED, result.error or "The job failed: see its log.")
        elif outcome.code is not None:
            self._close(row, JobState.FAILED, exit_sentence(outcome.code, self.settings.jobs))
        else:
            self._lose(row, "The worker is gone and nobody saw it end")

    def _abandon(self, row: JobRow, sentence: str) -> None:
        """End the worker, whatever it does, and the job with it."""
        self.launcher.sweep(row.id, Handle.model_validate_json(row.handle) if row.handle else None)
        self._guard(lambda one, told: self._close(one, JobState.FAILED, told), row, sentence)

    def _lose(self, row: JobRow, sentence: str, *, again: bool = False) -> None:
        """Nobody looks after a job that yields, so it looks after itself, a few times; so does one for which that is no risk."""
        if (again or row.yields) and row.attempt < MOST_ATTEMPTS and not row.cancel_requested:
            self._put_back(row, sentence)
        else:
            self._close(row, JobState.LOST, f"{sentence}: resume it.")

    def _put_back(self, row: JobRow, sentence: str) -> None:
        """Queue it again, swept before: the next attempt carries the same mark."""

        def write(session: Session) -> None:
            state = queue.put_back(session, leases.lease(row))
            told = f"{sentence}, and is {'queued again' if state is JobState.QUEUED else state}."
            history.append(session, row.id, [Event(kind="state", message=told, data={"state": state})])

        self.store.run(write)
        self._runs.pop(row.id, None)

    def _register(self, row: JobRow, result: Result) -> bool:
        """Verified and put in place outside, then one short commit, which counts only under the lease. False while it goes on."""
        held, output = leases.lease(row), self._channel(leases.lease(row)).output
        try:
            staged = self._staging.of(held, lambda: registry.stage(self.settings, self.store, row, output, result.document))
        except registry.NotPlaced as error:
            return self._not_placed(row, error)
        except (WhetstoneError, OSError, ValueError, LookupError, TypeError) as error:
            self._close(row, JobState.FAILED, f"The job's result could not be registered: {error}")
            return True
        if staged is None:
            return False

        def write(session: Session) -> None:
            leases.move(session, held, JobState.SUCCEEDED, progress=1.0, result=json.dumps(staged.record(session)))
            history.append(session, row.id, [Event(kind="state", message="Succeeded.", progress=1.0)])

        try:
            self.store.run(write)
        except (Fenced, NotNow):
            registry.withdraw(self.settings, self.store, row, staged)
            raise
        self._runs.pop(row.id, None)
        return True

    def _not_placed(self, row: JobRow, error: NotPlaced) -> bool:
        """The result waits for its place, until somebody cancels the job."""
        if row.cancel_requested:
            self._close(row, JobState.CANCELLED, f"The job was cancelled while its artifact waited for its place: {error}")
            return True
        told = Event(kind="warning", phase="upload", message=f"{error} The artifact is whole here and waits: it is tried again.")
        self.store.run(lambda session: history.append(session, row.id, [told]))
        return False

    def _close(self, row: JobRow, state: JobState, sentence: str) -> None:
        def write(session: Session) -> None:
            leases.move(session, leases.lease(row), state, error=sentence)
            history.append(session, row.id, [Event(kind="state", message=sentence, data={"state": str(state)})])

        self.store.run(write)
        self._runs.pop(row.id, None)
