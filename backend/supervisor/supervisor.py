"""The supervisor's loop. There is one per home (held by a file lock) and any number per database.

It may die between any two statements. What it knows is in the store: a restarted supervisor finds its workers again by
their handles, carries on, and can still cancel them. Every write about a job names the lease that the supervisor has
(`store.leases`), so a supervisor that was believed dead changes nothing when it comes back.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from functools import partial

from sqlmodel import Session

from backend import channel, launchers, processes
from backend.channel import Channel, ChannelDamaged
from backend.domain.errors import DiskFull, NotNow, WhetstoneError
from backend.domain.jobs.claims import Capacity, Claim, make_grant
from backend.domain.jobs.endings import MOST_STRIKES, Ending
from backend.domain.jobs.jobs import LIVE, Event, Handle, JobState, WorkerState
from backend.domain.jobs.kinds import KINDS
from backend.domain.jobs.terms import Terms
from backend.hardware import probe
from backend.launchers.base import Launcher
from backend.settings import Settings
from backend.store import history, leases, queue
from backend.store.database import Store
from backend.store.leases import ExpiredLeases, Fenced, Lease
from backend.store.serving import endpoint_rows
from backend.store.tables import JobRow, SupervisorRow
from backend.supervisor import dependencies
from backend.supervisor.attempt import MOST_WAITING, Attempt, HangDetector, free_places
from backend.supervisor.crash_marker import CrashMarker
from backend.supervisor.finish import STOPPED, Finisher, exit_reason, removal_reason
from backend.supervisor.heartbeat import Heartbeat
from backend.supervisor.uploads import Uploads

GRACE_SECONDS = 20.0
"""From SIGTERM to SIGKILL of a cancelled worker: long enough to stop a vLLM server in order."""
STOP_PAUSE_S = 0.1


class Supervisor:
    """Runs the jobs of one home. `tick` is one round of the loop; `beat` renews its leases."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        launcher: Launcher | None = None,
        *,
        host: str | None = None,
        capacity: Capacity | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        background_uploads: bool = False,
    ) -> None:
        """Read the host's capacity and make a row; nothing is written before `begin`.

        `background_uploads`: results are put in their place by threads of their own.
        """
        # 1. The host and what it offers.
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
        # 2. The state of its work.
        self._heartbeat = Heartbeat(store, self.row)
        self.draining = False
        """It takes no new jobs, because a person asked for that in its row."""
        uploads = Uploads(in_background=background_uploads, monotonic=monotonic)
        self._finisher = Finisher(settings, store, uploads)
        self._crash_marker = CrashMarker(settings.home)
        self._expired_leases = ExpiredLeases(monotonic)
        self._attempts: dict[str, Attempt] = {}
        self._to_put_aside: dict[str, int] = {}
        """Jobs to put aside once nothing of them runs, with the number of supervisors that died at each."""
        self.lost = 0
        """Jobs of its own that other supervisors took over."""

    def begin(self) -> None:
        """Take over what an earlier supervisor of this home left. The caller has the home's lock."""
        # 1. Adopt the live jobs of this home, and end processes that belong to none of them.
        self.store.run(lambda session: leases.adopt(session, self.row))
        self.beat()
        self.launcher.sweep_others({row.id for row in self._read_owned()})

        # 2. Put a job aside at which several supervisors died in a row.
        if self._crash_marker.deaths >= MOST_STRIKES:
            self._to_put_aside[self._crash_marker.suspect] = self._crash_marker.deaths
            for row in self._read_owned():
                if row.id in self._to_put_aside:
                    self._attend_guarded(row)

    def beat(self) -> None:
        """Renew the leases. Called every HEARTBEAT_SECONDS from a thread of its own, since a round may take long."""
        self._heartbeat.beat()

    def tick(self, *, start: bool = True) -> bool:
        """Do one round. Return True while a job is its own, or is queued and may be started here."""
        # 1. Read what is its own, whose lease has expired, and what waits.
        with self.store.read() as session:
            self.draining = leases.is_draining(session, self.row)
            owned, expired = leases.list_owned(session, self.row), leases.list_expired(session, self.row)
            waiting, stranded = queue.check_queue(session)
            unsettled = endpoint_rows.is_unsettled(session, self.row.host)

        # 2. Drop jobs that others took over, attend to its own, and give up those of dead supervisors.
        self._drop_lost(owned)
        for row in owned:
            with self._crash_marker.mark(row.id):
                self._attend_guarded(row)
        self._give_up_expired(expired)

        # 3. Cancel jobs that can never start. Jobs that ended in step 2 may have changed which those are.
        if owned:
            with self.store.read() as session:
                waiting, stranded = queue.check_queue(session)
        if stranded:
            self.store.run(queue.cancel_stranded)

        # 4. Start the next job, unless the supervisor is to end; give endpoints that lost their job another.
        if self.draining:
            self._requeue_yielding(owned, "The supervisor takes no new jobs and ends: this goes back into the queue.")
            if endpoint_rows.are_to_vacate(owned):
                self.store.run(partial(endpoint_rows.vacate, jobs=owned))
            return bool(owned)
        if unsettled and start:
            self.store.run(partial(endpoint_rows.settle, host=self.row.host, artifacts=str(self.settings.artifacts)))
        started = (waiting or unsettled) and start and self._start_next(owned)
        return bool(owned) or started or waiting or unsettled

    def stop(self) -> None:
        """Hand over: workers go on, and the next supervisor of this home adopts them. Jobs that yield are requeued."""
        deadline = self._now() + GRACE_SECONDS + 10
        self._requeue_yielding(self._read_owned(), "The supervisor is being stopped: this goes back into the queue.")
        while self._now() < deadline:
            if not any(row.state == JobState.STARTING or row.yields for row in self._read_owned()):
                break
            self.tick(start=False)
            time.sleep(STOP_PAUSE_S)
        self._heartbeat.hand_over()

    def rest(self) -> bool:
        """Write down that it ends, and tell whether it may: where there is work after all, it lives on."""
        return self._heartbeat.rest()

    def _read_owned(self) -> list[JobRow]:
        with self.store.read() as session:
            return leases.list_owned(session, self.row)

    def _drop_lost(self, owned: list[JobRow]) -> None:
        """End the workers of jobs that another supervisor took over or that have ended."""
        own_leases = {leases.read_lease(row) for row in owned}
        lost = [job_id for job_id, attempt in self._attempts.items() if attempt.lease not in own_leases]
        for job_id in lost:
            attempt = self._attempts[job_id]
            try:
                self._sweep(attempt.lease, attempt.handle)
            except (WhetstoneError, OSError) as error:  # other jobs go on; the next round tries again
                logging.error("%s: %s", job_id, error)
                continue
            del self._attempts[job_id]
            self.lost += 1

    def _give_up_expired(self, expired: list[JobRow]) -> None:
        """End attempts of other hosts or homes whose supervisor is gone: nobody here can read their channel.

        What another machine runs for such a job is asked to end first, or it would be done, and paid for, twice.
        """
        for row in self._expired_leases.find_expired(expired):
            handle = Handle.model_validate_json(row.handle) if row.handle else None
            if handle is None or self.launcher.ended_elsewhere(row.spec, handle):
                sentence = f"The supervisor on {row.host} ({row.home}) is gone, and its worker with it"
                self._ignore_fenced(partial(self._finisher.fail_or_retry, row, Ending.NODE, sentence))

    def _put_aside(self, row: JobRow, deaths: int) -> None:
        """Put aside the job at which so many supervisors died, one after the other."""
        self.launcher.sweep(row.id, Handle.model_validate_json(row.handle) if row.handle else None)
        sentence = (
            f"{deaths} supervisors in a row ended at this job, so it was put aside: see supervisor.log; "
            f"`whetstone jobs release {row.id}` gives it another try."
        )
        self._finisher.end_attempt(row, JobState.LOST, sentence, ending=Ending.SUPERVISOR, strikes=deaths, aside=True)
        del self._to_put_aside[row.id]

    def _requeue_yielding(self, owned: list[JobRow], sentence: str) -> None:
        for row in owned:
            if row.yields and not row.cancel_requested:
                self._make_room(row, sentence)

    def _make_room(self, row: JobRow, sentence: str) -> None:
        """Stop a running job so that it is queued again."""

        def write(session: Session) -> None:
            queue.make_room(session, row)
            history.append(session, row.id, [Event(kind="state", message=sentence)])

        if row.state == JobState.RUNNING:
            self._ignore_fenced(lambda: self.store.run(write))

    def _ignore_fenced(self, write: Callable[[], None]) -> None:
        """Run the write; a job that another took over, or that ended meanwhile, is left as it is."""
        try:
            write()
        except (Fenced, NotNow) as error:
            logging.warning("%s", error)

    def _start_next(self, owned: list[JobRow]) -> bool:
        """Claim and start the first job that fits. Return False if there is none."""
        # 1. Stop jobs that yield, if a person's own job could start without them.
        capacity = self._current_capacity()
        if any(row.yields for row in owned):
            with self.store.read() as session:
                to_stop = queue.find_jobs_to_stop(session, self.row.host, capacity)
            for row in to_stop:
                if row.supervisor == self.row.id:
                    sentence = (
                        "Makes room for a job of your own: this goes back into the queue and starts again after it."
                    )
                    self._make_room(row, sentence)

        # 2. Claim the job with the cores, memory and GPUs that it needs.
        claimed = self.store.run(lambda session: self._claim(session, capacity))
        if claimed is None:
            return False

        # 3. Start its worker.
        row, lease, devices = claimed
        with self._crash_marker.mark(row.id):
            self._start(row, lease, devices)
        return True

    def _current_capacity(self) -> Capacity:
        """Return what this host has, with its free disk and the number of jobs that its cluster takes now."""
        places = free_places(self._capacity.cluster, (attempt.placement for attempt in self._attempts.values()))
        free = shutil.disk_usage(self.settings.home).free
        return self._capacity.model_copy(update={"disk_bytes": free, "cluster": places})

    def _claim(self, session: Session, capacity: Capacity) -> tuple[JobRow, Lease, list[str]] | None:
        row = queue.find_claimable(session, self.row.host, capacity)
        if row is None:
            return None
        lease = leases.claim(session, row, self.row)
        return (row, lease, leases.list_devices(session, row.id)) if lease else None

    def _start(self, row: JobRow, lease: Lease, devices: list[str]) -> None:
        # 1. Remember the attempt.
        claim = Claim.model_validate_json(row.claim)
        attempt = Attempt(lease, HangDetector(self._now()), terms=Terms.model_validate_json(row.terms))
        attempt.placement.whole = claim.whole
        self._attempts[row.id] = attempt
        # 2. Open the channel and start the worker.
        opened = self._channel(lease)
        try:
            specification = dependencies.fill_specification(self.settings, self.store, row)
            opened.open(specification, make_grant(devices, self._capacity, claim))
            attempt.handle = self.launcher.start(row.id, opened)
        except (WhetstoneError, OSError) as error:
            ending = Ending.DISK if isinstance(error, DiskFull) else Ending.UNSTARTED
            attempt.start_failure = ending, f"The job was not started. {error}"
            return
        # 3. Record the worker in the job's row.
        try:
            self._record_start(attempt)
        except (Fenced, NotNow) as error:  # taken over while it started: the next round ends its worker
            logging.warning("%s", error)

    def _record_start(self, attempt: Attempt) -> None:
        """Write the worker's handle into the job's row. If the database refuses it now, the next round tries again."""
        handle, lease = attempt.handle, attempt.lease
        assert handle is not None
        data = {"state": JobState.RUNNING, "attempt": lease.attempt, "place": handle.place, "host": self.row.host}
        message = f"Started as {handle.place}, attempt {lease.attempt}."

        def write(session: Session) -> None:
            leases.move(session, lease, JobState.RUNNING, handle=handle.model_dump_json())
            history.append(session, lease.job, [Event(kind="state", message=message, data=data)])

        self.store.run(write)

    def _attend_guarded(self, row: JobRow) -> None:
        """Attend to a job. An error about it (its channel, a locked database, a full disk) stops no other job, and the
        next round tries again."""
        try:
            try:
                self._attend(row)
            except ChannelDamaged as error:
                self._abandon(row, Ending.DAMAGED, str(error).rstrip("."))
        except Fenced as error:
            logging.warning("%s", error)
        except (WhetstoneError, OSError) as error:
            logging.error("%s: %s", row.id, error)

    def _attend(self, row: JobRow) -> None:
        """Carry the job's events into the store, and finish, cancel or end it if it is time."""
        # 1. A job that is to be put aside, or whose worker is not recorded, is a case of its own.
        if deaths := self._to_put_aside.get(row.id):
            self._put_aside(row, deaths)
            return
        attempt = self._attempts.get(row.id) or self._adopt(row)
        self._attempts[row.id] = attempt
        if row.handle is None:
            self._attend_unstarted(row, attempt)
            return

        # 2. Look at the worker first and read its events after: what it wrote before its exit is then carried.
        attempt.handle = handle = Handle.model_validate_json(row.handle)
        worker = self.launcher.poll(handle)
        self._record_place(row, attempt, handle, worker)
        events = self._carry_events(row, attempt.lease)
        attempt.hang_detector.observe(self._channel(attempt.lease).pulse(), events, self._now())

        # 3. Decide what follows.
        idle_s = None if KINDS[row.kind].open_ended else self.settings.idle_s
        if not worker.alive:
            self._finish(row, handle, worker)
        elif row.cancel_requested or queue.is_making_room(row):
            self._cancel(row, attempt, handle)
        elif hang := attempt.hang_detector.hang_reason(self.settings.silent_s, idle_s):
            removal = removal_reason(self._channel(attempt.lease).address)
            self._abandon(row, Ending.HUNG, removal or f"{hang}, so it was ended: see the log, then resume the job")
        elif timeout := attempt.find_timeout(spoke=row.segment > 0):
            ending, cause = timeout
            self.store.run(lambda session: queue.request_cancel(session, row.id, cause, ending))

    def _adopt(self, row: JobRow) -> Attempt:
        """Return what is known about an attempt that another supervisor started."""
        with self.store.read() as session:
            ran_s = (leases.clock(session) - row.started_at).total_seconds() if row.started_at else 0.0
        terms = Terms.model_validate_json(row.terms)
        return Attempt(leases.read_lease(row), HangDetector(self._now()), ran_before_s=ran_s, terms=terms)

    def _attend_unstarted(self, row: JobRow, attempt: Attempt) -> None:
        """Record a worker that started, or end an attempt that never had one."""
        if attempt.handle is not None:
            self._record_start(attempt)
            return
        self._sweep(attempt.lease, None)
        if attempt.start_failure is not None:
            self._finisher.fail_or_retry(row, *attempt.start_failure)
        else:  # a supervisor died before it recorded the worker: the sweep found it by the job's id
            self._finisher.fail_or_retry(row, Ending.SUPERVISOR, "The supervisor ended while starting this job")
        self._attempts.pop(row.id, None)

    def _record_place(self, row: JobRow, attempt: Attempt, handle: Handle, worker: WorkerState) -> None:
        """Record where a cluster runs the worker, or what it waits for. A worker that waits is not silent."""
        if worker.waiting is not None:
            attempt.hang_detector = HangDetector(self._now())
        attempt.handle, events = attempt.placement.update(handle, worker)
        document = attempt.handle.model_dump_json()

        def write(session: Session) -> None:
            leases.change(session, attempt.lease, LIVE, handle=document)
            history.append(session, row.id, events)

        if events:
            self.store.run(write)

    def _carry_events(self, row: JobRow, lease: Lease) -> list[Event]:
        """Copy new events of the channel into the store and return them."""
        segments = self._channel(lease).segments(row.segment)
        events: list[Event] = []
        for _, segment_events in segments:
            events += segment_events

        def write(session: Session) -> None:
            leases.change(session, lease, LIVE, segment=segments[-1][0])
            history.append(session, row.id, events)

        if segments:
            self.store.run(write)
        return events

    def _channel(self, lease: Lease) -> Channel:
        return channel.attempt_channel(self.settings, lease.job, lease.attempt)

    def _sweep(self, lease: Lease, handle: Handle | None) -> None:
        """End what the attempt left running and remove its scratch files."""
        self.launcher.sweep(lease.job, handle)
        self._channel(lease).clear()

    def _cancel(self, row: JobRow, attempt: Attempt, handle: Handle) -> None:
        """Ask the worker to stop; after GRACE_SECONDS end it by force."""
        if attempt.stop_requested_s is None:
            if row.state == JobState.RUNNING:
                self.store.run(lambda session: leases.move(session, attempt.lease, JobState.CANCELLING))
            attempt.stop_requested_s = self._now()
            self.launcher.cancel(handle, force=False)
        elif self._now() - attempt.stop_requested_s > GRACE_SECONDS:
            self.launcher.cancel(handle, force=True)

    def _finish(self, row: JobRow, handle: Handle, worker: WorkerState) -> None:
        """End an attempt whose worker is gone.

        What the worker wrote about itself counts first, then what was seen of its exit. The job ends in the store only
        after nothing of it runs.
        """
        lease, finisher = leases.read_lease(row), self._finisher
        result = self._channel(lease).result()

        # 1. Register the result of a worker that succeeded. This may take several rounds.
        if result is not None and result.outcome == "succeeded":
            self.launcher.sweep(row.id, handle)
            if finisher.register(row, self._channel(lease), result):
                self._channel(lease).clear()
                self._attempts.pop(row.id, None)
            return

        # 2. Otherwise say why it ended, and retry where that helps.
        self._sweep(lease, handle)
        cancelled = result is not None and result.outcome == "cancelled"
        if queue.is_making_room(row):
            finisher.requeue_yielded(row)
        elif row.state == JobState.CANCELLING or row.cancel_requested:
            finisher.end_cancelled(row, result.error if result is not None and cancelled else None)
        elif cancelled:
            finisher.fail_or_retry(row, Ending.STOPPED, STOPPED)
        elif result is not None:
            finisher.fail_or_retry(row, result.ending or Ending.FAILED, result.error or "The job failed: see its log")
        elif worker.code is not None:
            finisher.fail_or_retry(row, *exit_reason(worker.code, self.settings.jobs, self._channel(lease).address))
        elif worker.cause is not None:
            finisher.fail_or_retry(row, Ending.NODE if worker.again else Ending.UNSTARTED, worker.cause)
        else:
            finisher.fail_or_retry(row, Ending.LOST, "The worker is gone and nobody saw it end")
        self._attempts.pop(row.id, None)

    def _abandon(self, row: JobRow, ending: Ending, sentence: str) -> None:
        """End the worker, whatever it does, and the attempt with it."""
        self.launcher.sweep(row.id, Handle.model_validate_json(row.handle) if row.handle else None)
        self._ignore_fenced(lambda: self._finisher.fail_or_retry(row, ending, sentence))
        self._attempts.pop(row.id, None)
