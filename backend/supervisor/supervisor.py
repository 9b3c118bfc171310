"""The supervisor's loop. One a home (held by a file lock), any number on one database; it can die between any two
statements.

What it knows stands in the store: a restarted supervisor finds its workers again by their handles, carries on, and can
still cancel them. Whatever it writes of a job names the lease that it holds (`store.leases`), so that a supervisor
which was thought gone changes nothing when it comes back.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from sqlmodel import Session

from backend import channel, launchers, processes
from backend.channel import Channel, ChannelDamaged
from backend.domain.errors import DiskFull, NotNow, WhetstoneError
from backend.domain.figures import span
from backend.domain.jobs.claims import Capacity, Claim, make_grant
from backend.domain.jobs.endings import MOST_STRIKES, Ending
from backend.domain.jobs.jobs import LIVE, Event, Handle, JobKind, JobState, WorkerState
from backend.domain.jobs.kinds import KINDS
from backend.domain.jobs.terms import Terms
from backend.hardware import probe
from backend.launchers.base import Launcher
from backend.settings import Settings
from backend.store import history, leases, queue
from backend.store.database import Store
from backend.store.leases import Fenced, Lease
from backend.store.tables import JobRow, SupervisorRow
from backend.supervisor import dependencies
from backend.supervisor.cluster_queue import MOST_WAITING, ClusterPlacement, free_places
from backend.supervisor.crash_marker import CrashMarker
from backend.supervisor.expired_leases import ExpiredLeases
from backend.supervisor.finish import STOPPED, Finisher, exit_reason, removal_reason
from backend.supervisor.hang_detector import HangDetector
from backend.supervisor.uploads import Uploads

GRACE_SECONDS = 20.0
"""From SIGTERM to SIGKILL of a cancelled worker: long enough to stop a vLLM server in order."""


@dataclass
class Run:
    """What is known beside the store of a job that this supervisor has."""

    lease: Lease
    hang_detector: HangDetector
    handle: Handle | None = None
    """Of a worker that was started and is not recorded yet."""
    unstarted: tuple[Ending, str] | None = None
    """Why it was not started, until its row says so."""
    ran_before_s: float = 0.0
    """The attempt's time before this supervisor had it, by the database's clock."""
    terms: Terms = field(default_factory=Terms)
    asked: float | None = None
    """When the worker was asked to stop."""
    placement: ClusterPlacement = field(default_factory=ClusterPlacement)


class Supervisor:
    """`tick` is one round: look after what it has, give up what others lost, start what may start. `beat` renews its
    leases."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        launcher: Launcher | None = None,
        *,
        host: str | None = None,
        capacity: Capacity | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        beside: bool = False,
    ) -> None:
        """`beside`: results are put in their place in threads of their own."""
        self.settings, self.store, self._now = settings, store, monotonic
        self.launcher = launcher or launchers.choose_launcher(settings)
        self._capacity = capacity or Capacity(
            cores=probe.cores(),
            memory_bytes=probe.total_memory(),
            gpus=len(probe.accelerators()),
            cluster=MOST_WAITING if self.launcher.places else None,
        )
        self.row = SupervisorRow(
            id="s-" + secrets.token_hex(4),
            host=host or socket.gethostname(),
            home=str(settings.home),
            pid=os.getpid(),
            process_started=processes.start_stamp(os.getpid()),
            capacity=self._capacity.model_dump_json(),
        )
        self.draining = False
        """It takes no new jobs: a person asked so, in its row."""
        uploads = Uploads(beside=beside, monotonic=monotonic)
        self._finisher, self._crash_marker = Finisher(settings, store, uploads), CrashMarker(settings.home)
        self._runs: dict[str, Run] = {}
        self._aside: dict[str, int] = {}
        """Jobs to be put aside once what may run of them is ended, and how many supervisors ended at each."""
        self._expired_leases = ExpiredLeases(monotonic)
        self.lost = 0
        """Jobs of its own that others took over."""

    def begin(self) -> None:
        """Take over what an earlier supervisor of this home left. Whoever calls it holds the home's lock."""
        self.store.run(lambda session: leases.adopt(session, self.row))
        self.beat()
        self.launcher.sweep_others({row.id for row in self._own()})
        if self._crash_marker.deaths >= MOST_STRIKES:
            self._aside[self._crash_marker.suspect] = self._crash_marker.deaths
            for row in (row for row in self._own() if row.id in self._aside):
                self._guarded(row)

    def _put_aside(self, row: JobRow, deaths: int) -> None:
        """The job at which so many supervisors ended, one after the other."""
        self.launcher.sweep(row.id, Handle.model_validate_json(row.handle) if row.handle else None)
        told = f"{deaths} supervisors in a row ended at this job, so it was put aside: see supervisor.log"
        way_on = f"{told}; `whetstone jobs release {row.id}` gives it another try."
        self._finisher.end_attempt(row, JobState.LOST, way_on, ending=Ending.SUPERVISOR, strikes=deaths, aside=True)
        del self._aside[row.id]

    def beat(self) -> None:
        """To be called every HEARTBEAT_SECONDS, from a thread of its own: a round may take long."""
        self.store.run(lambda session: leases.renew(session, self.row))

    def tick(self, *, start: bool = True) -> bool:
        """One round; True while any job is its own, or queued and to be started here."""
        with self.store.read() as session:
            self.draining = leases.is_draining(session, self.row)
            own, expired = leases.list_owned(session, self.row), leases.list_expired(session, self.row)
            waiting, stranded = queue.check_queue(session)
        self._drop_lost(own)
        for row in own:
            with self._crash_marker.mark(row.id):
                self._guarded(row)
        self._give_up_late(expired)
        if own:  # whose ends may have changed it
            with self.store.read() as session:
                waiting, stranded = queue.check_queue(session)
        if stranded:
            self.store.run(queue.cancel_stranded)
        if self.draining:
            self._clear_out(own, "The supervisor takes no new jobs and ends: this goes back into the queue.")
            return bool(own)
        started = waiting and start and self._start_next(own)
        return bool(own) or started or waiting

    def stop(self) -> None:
        """Hand over: workers go on, and the next supervisor of this home takes them up. What yields goes back into the
        queue."""
        deadline = self._now() + GRACE_SECONDS + 10
        self._clear_out(self._own(), "The supervisor is being stopped: this goes back into the queue.")
        while self._now() < deadline and any(row.state == JobState.STARTING or row.yields for row in self._own()):
            self.tick(start=False)
            time.sleep(0.1)
        self.store.run(self._hand_over)

    def _hand_over(self, session: Session) -> None:
        event = Event(
            kind="state", message="The supervisor was stopped: the worker goes on, and the next one takes it up."
        )
        for row in leases.list_owned(session, self.row):
            history.append(session, row.id, [event])
        leases.hand_over(session, self.row)

    def _clear_out(self, own: list[JobRow], sentence: str) -> None:
        for row in own:
            if row.yields and not row.cancel_requested:
                self._make_room(row, sentence)

    def _own(self) -> list[JobRow]:
        with self.store.read() as session:
            return leases.list_owned(session, self.row)

    def _drop_lost(self, own: list[JobRow]) -> None:
        """A job that another has taken, or that has ended, is none of this supervisor's: its worker goes."""
        kept = {leases.read_lease(row) for row in own}
        for job_id, run in [(job_id, run) for job_id, run in self._runs.items() if run.lease not in kept]:
            try:
                self._sweep(run.lease, run.handle)
            except (WhetstoneError, OSError) as error:  # no other job's trouble; asked again in the next round
                logging.error("%s: %s", job_id, error)
                continue
            del self._runs[job_id]
            self.lost += 1

    def _guarded(self, row: JobRow) -> None:
        """What is wrong with one job (its channel, a locked database, a full disk) is no other's trouble, and is tried
        again."""
        try:
            self._looked_after(row)
        except Fenced as error:
            logging.warning("%s", error)
        except (WhetstoneError, OSError) as error:
            logging.error("%s: %s", row.id, error)

    def _looked_after(self, row: JobRow) -> None:
        try:
            self._look_after(row)
        except ChannelDamaged as error:
            self._abandon(row, Ending.DAMAGED, str(error).rstrip("."))

    def _give_up_late(self, expired: list[JobRow]) -> None:
        """Jobs of other hosts or homes whose supervisor has gone: their channel is out of reach. What another machine
        runs for them is asked to end first: the next attempt would have it done, and paid for, twice."""
        for row in self._expired_leases.find_expired(expired):
            if not row.handle or self.launcher.ended_elsewhere(row.spec, Handle.model_validate_json(row.handle)):
                told = f"The supervisor on {row.host} ({row.home}) is gone, and its worker with it"
                self._guard(partial(self._finisher.fail_or_retry, row, Ending.NODE, told))

    def _guard(self, act: Callable[[], None]) -> None:
        """A job that is another's by now, or has ended since it was looked at, is left as it is."""
        try:
            act()
        except (Fenced, NotNow) as error:
            logging.warning("%s", error)

    def _make_room(self, row: JobRow, sentence: str) -> None:
        def write(session: Session) -> None:
            queue.make_room(session, row)
            history.append(session, row.id, [Event(kind="state", message=sentence)])

        if row.state == JobState.RUNNING:
            self._guard(lambda: self.store.run(write))

    def _start_next(self, own: list[JobRow]) -> bool:
        capacity, jobs = self._now_free(), list[JobRow]()
        if any(row.yields for row in own):
            with self.store.read() as session:
                jobs = queue.find_jobs_to_stop(session, self.row.host, capacity)
        for row in jobs:
            if row.supervisor == self.row.id:
                told = "Makes room for a job of your own: this goes back into the queue and starts again after it."
                self._make_room(row, told)
        claimed = self.store.run(lambda session: self._claim(session, capacity))
        if claimed is None:
            return False
        row, held, devices = claimed
        with self._crash_marker.mark(row.id):
            self._start(row, held, devices)
        return True

    def _now_free(self) -> Capacity:
        """What this host has, with what its disk has free now, and how many more jobs its cluster is given."""
        more = free_places(self._capacity.cluster, (run.placement for run in self._runs.values()))
        return self._capacity.model_copy(
            update={"disk_bytes": shutil.disk_usage(self.settings.home).free, "cluster": more}
        )

    def _start(self, row: JobRow, held: Lease, devices: list[str]) -> None:
        claim = Claim.model_validate_json(row.claim)
        run = self._runs[row.id] = Run(held, HangDetector(self._now()), terms=Terms.model_validate_json(row.terms))
        run.placement.whole = claim.whole
        opened = self._channel(held)
        try:
            opened.open(
                dependencies.fill_specification(self.settings, self.store, row),
                make_grant(devices, self._capacity, claim),
            )
            run.handle = self.launcher.start(row.id, opened)
        except (WhetstoneError, OSError) as error:
            ending = Ending.DISK if isinstance(error, DiskFull) else Ending.UNSTARTED
            run.unstarted = ending, f"The job was not started. {error}"
            return
        try:
            self._record(run)
        except (Fenced, NotNow) as error:  # taken over while it started: the next round ends its worker
            logging.warning("%s", error)

    def _claim(self, session: Session, capacity: Capacity) -> tuple[JobRow, Lease, list[str]] | None:
        row = queue.find_claimable(session, self.row.host, capacity)
        held = leases.claim(session, row, self.row) if row else None
        return (row, held, leases.list_devices(session, row.id)) if row and held else None

    def _record(self, run: Run) -> None:
        """The worker's handle; where the database does not take it now, it is kept and offered again."""
        handle = run.handle
        assert handle is not None

        def write(session: Session) -> None:
            leases.move(session, run.lease, JobState.RUNNING, handle=handle.model_dump_json())
            told = f"Started as {handle.place}, attempt {run.lease.attempt}."
            data = {
                "state": JobState.RUNNING,
                "attempt": run.lease.attempt,
                "place": handle.place,
                "host": self.row.host,
            }
            history.append(session, run.lease.job, [Event(kind="state", message=told, data=data)])

        self.store.run(write)

    def _look_after(self, row: JobRow) -> None:
        if deaths := self._aside.get(row.id):
            self._put_aside(row, deaths)
            return
        held = leases.read_lease(row)
        run = self._runs[row.id] = self._runs.get(row.id) or self._adopted(row)
        if row.handle is None:
            self._look_after_unstarted(row, run)
            return
        run.handle = handle = Handle.model_validate_json(row.handle)
        outcome = self.launcher.poll(handle)  # before the events: what was written before the exit is then carried
        self._tell_place(row, run, handle, outcome)
        events = self._carry(row, held)
        run.hang_detector.observe(self._channel(held).pulse(), events, self._now())
        if not outcome.alive:
            self._finish(row, handle, outcome)
        elif row.cancel_requested or queue.is_making_room(row):
            self._cancel(row, run, handle)
        elif hung := run.hang_detector.hang_reason(
            self.settings.silent_s, None if KINDS[JobKind(row.kind)].may_idle else self.settings.idle_s
        ):
            gone = removal_reason(self._channel(held).address)
            self._abandon(row, Ending.HUNG, gone or f"{hung}, so it was ended: see the log, then resume the job")
        elif late := self._overdue(row, run):
            ending, cause = late
            self.store.run(lambda session: queue.request_cancel(session, row.id, cause, ending))

    def _tell_place(self, row: JobRow, run: Run, handle: Handle, outcome: WorkerState) -> None:
        """Of a worker whose launcher finds a node for it. While it waits it is not silent."""
        if outcome.waiting is not None:
            run.hang_detector = HangDetector(self._now())
        run.handle, events = run.placement.update(handle, outcome)
        placed = run.handle.model_dump_json()

        def write(session: Session) -> None:
            leases.change(session, run.lease, LIVE, handle=placed)
            history.append(session, row.id, events)

        if events:
            self.store.run(write)

    def _adopted(self, row: JobRow) -> Run:
        """Of a job that this supervisor did not start."""
        with self.store.read() as session:
            ran_s = (leases.clock(session) - row.started_at).total_seconds() if row.started_at else 0.0
        return Run(
            leases.read_lease(row),
            HangDetector(self._now()),
            ran_before_s=ran_s,
            terms=Terms.model_validate_json(row.terms),
        )

    def _overdue(self, row: JobRow, run: Run) -> tuple[Ending, str] | None:
        """Which limit the attempt is beyond, and its name. Time counts in looks: no pause of this machine is the
        job's."""
        ran_s, terms = run.ran_before_s + run.hang_detector.watched_s, run.terms
        spoke = row.segment > 0
        if terms.start_timeout_s is not None and not spoke and ran_s > terms.start_timeout_s:
            return Ending.START_TIMEOUT, f"its start timeout of {span(terms.start_timeout_s)}"
        if terms.run_timeout_s is not None and ran_s > terms.run_timeout_s:
            return Ending.RUN_TIMEOUT, f"its run timeout of {span(terms.run_timeout_s)}"
        return None

    def _look_after_unstarted(self, row: JobRow, run: Run) -> None:
        if run.handle is not None:
            self._record(run)
            return
        self._sweep(run.lease, None)
        if run.unstarted is not None:
            self._finisher.fail_or_retry(row, *run.unstarted)
        else:  # a supervisor died before its worker was recorded: the job's id finds whatever did start
            self._finisher.fail_or_retry(row, Ending.SUPERVISOR, "The supervisor ended while starting this job")
        self._runs.pop(row.id, None)

    def _channel(self, held: Lease) -> Channel:
        return channel.attempt_channel(self.settings, held.job, held.attempt)

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

    def _finish(self, row: JobRow, handle: Handle, outcome: WorkerState) -> None:
        """The worker is gone: what it said of itself counts first, then what was seen of its exit. It has ended, for
        whoever looks, once nothing of it is left."""
        held, closing = leases.read_lease(row), self._finisher
        result = self._channel(held).result()
        if result is not None and result.outcome == "succeeded":
            self.launcher.sweep(row.id, handle)
            if closing.register(row, self._channel(held), result):
                self._channel(held).clear()
                self._runs.pop(row.id, None)
            return
        self._sweep(held, handle)
        if queue.is_making_room(row):
            closing.requeue_yielded(row)
        elif row.state == JobState.CANCELLING or row.cancel_requested:
            closing.end_cancelled(row, result.error if result is not None and result.outcome == "cancelled" else None)
        elif result is not None and result.outcome == "cancelled":
            closing.fail_or_retry(row, Ending.STOPPED, STOPPED)
        elif result is not None:
            closing.fail_or_retry(row, result.ending or Ending.FAILED, result.error or "The job failed: see its log")
        elif outcome.code is not None:
            closing.fail_or_retry(row, *exit_reason(outcome.code, self.settings.jobs, self._channel(held).address))
        elif outcome.cause is not None:
            closing.fail_or_retry(row, Ending.NODE if outcome.again else Ending.UNSTARTED, outcome.cause)
        else:
            closing.fail_or_retry(row, Ending.LOST, "The worker is gone and nobody saw it end")
        self._runs.pop(row.id, None)

    def _abandon(self, row: JobRow, ending: Ending, sentence: str) -> None:
        """End the worker, whatever it does, and the attempt with it."""
        self.launcher.sweep(row.id, Handle.model_validate_json(row.handle) if row.handle else None)
        self._guard(lambda: self._finisher.fail_or_retry(row, ending, sentence))
        self._runs.pop(row.id, None)
