"""Claimed once, executed at least once, registered once: two supervisors on one database, crashes between any two
statements.

A machine makes histories out of submissions, rounds that end half-way, workers that speak, succeed, die or are thought
gone, pauses past the lease, cancels and resumes; with jobs that come after others, priorities, tries again, jobs put
aside and drained supervisors; after each step the store must be whole, and at the end everything must end.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text, update
from sqlmodel import col, select

from backend.artifacts import artifact_folder
from backend.domain.errors import NotNow
from backend.domain.jobs.claims import Claim, claimed_units
from backend.domain.jobs.endings import MOST_STRIKES, POLICIES, Ending
from backend.domain.jobs.jobs import LIVE, RESUMABLE, TERMINAL, JobState
from backend.domain.jobs.terms import Priority, Terms
from backend.domain.machine.device import GIB
from backend.store import history, leases, queue
from backend.store.tables import ArtifactRow, ClaimRow, JobRow
from tests.homes import DATABASE, open_home
from tests.postgres import Postgres
from tests.properties import examples
from tests.simulated_workers import CAPACITY, Home, Worker, World

MOST_JOBS = 4
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Thousands of files are written, and none outlives the test."""
crashes = st.none() | st.integers(0, 40)
CLAIMS = (
    Claim(whole=True),
    Claim(),
    Claim(background=True, cores=0, gpus=()),
    Claim(cores=1, gpus=(0,), memory_bytes=3 * GIB),
    Claim(cores=1, gpus=(), memory_bytes=6 * GIB),
)
TERMS = (Terms(), Terms(priority=Priority.HIGH), Terms(retries=0), Terms(retries=5, run_timeout_s=30.0))


class TwoSupervisors(RuleBasedStateMachine):
    """`homes[0]` and `homes[1]` may be on one host, whose devices they share, or on two."""

    def __init__(self) -> None:
        super().__init__()
        self.folder, self.world, self.submitted = Path(tempfile.mkdtemp(dir=MEMORY)), World(), 0
        self.done: dict[str, int] = {}
        """Job -> the attempt that succeeded: it is its last one (skypilot#6133)."""

    @initialize(hosts=st.sampled_from([("one", "one"), ("one", "two")]))
    def begin(self, hosts: tuple[str, str]) -> None:
        open_home(self.folder).store.engine.dispose()
        url = self.url()
        self.homes = [Home(self.world, self.folder / f"home-{n}", url, host) for n, host in enumerate(hosts)]
        self.store = self.homes[0].store

    def url(self) -> str:
        return f"sqlite:///{self.folder / DATABASE}"

    def teardown(self) -> None:
        try:
            if self.submitted:
                self.settle()
        finally:
            for home in self.homes:
                home.store.engine.dispose()
            shutil.rmtree(self.folder)

    @precondition(lambda self: self.submitted < MOST_JOBS)
    @rule(
        claim=st.sampled_from(CLAIMS),
        yields=st.booleans(),
        terms=st.sampled_from(TERMS),
        after=st.integers(0, MOST_JOBS),
    )
    def submit(self, claim: Claim, yields: bool, terms: Terms, after: int) -> None:
        """`after` that many of the jobs that are there, else after none."""
        self.submitted += 1
        first = f"j-{after}" if 0 < after < self.submitted else None
        row = JobRow(
            id=f"j-{self.submitted}",
            kind="optimize",
            state=JobState.QUEUED,
            title="t",
            owner="t",
            spec="{}",
            claim=claim.text,
            yields=yields,
            terms=terms.text,
            after=first,
        )
        try:
            self.homes[0].store.run(lambda session: queue.submit(session, row))
        except NotNow:  # the first has ended without success
            self.submitted -= 1

    @rule(which=st.integers(0, 1), crash_after=crashes)
    def tick(self, which: int, crash_after: int | None) -> None:
        self.homes[which].tick(crash_after)

    @rule(which=st.integers(0, 1))
    def beat(self, which: int) -> None:
        self.homes[which].supervisor.beat()

    @precondition(lambda self: self.world.alive())
    @rule(data=st.data(), what=st.sampled_from(["say", "succeed", "stop", "fail", "fill", "die"]))
    def work(self, data: st.DataObject, what: str) -> None:
        """Any worker, also one whose job another supervisor has taken meanwhile."""
        worker: Worker = data.draw(st.sampled_from(self.world.alive()))
        if what == "die":
            worker.alive = False
        elif worker.channel.spec() is not None and worker.channel.work.exists():
            getattr(worker, what)()

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = f"j-{data.draw(st.integers(1, self.submitted))}"
        with suppress(NotNow):
            self.homes[0].store.run(lambda session: queue.request_cancel(session, job, "a person"))

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        job = f"j-{data.draw(st.integers(1, self.submitted))}"
        with suppress(NotNow):
            self.homes[0].store.run(lambda session: queue.requeue(session, job))

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), what=st.sampled_from(["front", "high", "release"]))
    def arrange(self, data: st.DataObject, what: str) -> None:
        job = f"j-{data.draw(st.integers(1, self.submitted))}"
        acts = {
            "front": lambda session: queue.move_to_front(session, job),
            "high": lambda session: queue.prioritize(session, job, Priority.HIGH),
            "release": lambda session: queue.release(session, job),
        }
        with suppress(NotNow):
            self.homes[0].store.run(acts[what])

    @rule()
    def wait(self) -> None:
        """Until whatever is to be tried again later may be."""
        with self.store.session() as session:
            early = leases.clock(session).replace(year=2020)
            session.execute(update(JobRow).where(col(JobRow.not_before).is_not(None)).values(not_before=early))

    @rule(which=st.integers(0, 1))
    def drain(self, which: int) -> None:
        """It takes no new jobs; the next one of its home does."""
        home = self.homes[which]
        home.store.run(lambda session: leases.drain(session, home.host, str(home.settings.home)))
        home.tick()
        if not home.supervisor.tick():
            home.restart()

    @rule(which=st.integers(0, 1), seconds=st.sampled_from([5.0, 40.0]))
    def pause(self, which: int, seconds: float) -> None:
        """That supervisor sleeps; the other one does not, and time passes for it."""
        other, asleep = self.homes[1 - which], self.homes[which]
        statement = update(JobRow).where(
            col(JobRow.supervisor) == asleep.supervisor.row.id, col(JobRow.state).in_(LIVE)
        )
        if seconds > leases.LEASE_SECONDS:
            with asleep.store.session() as session:
                session.execute(statement.values(lease_until=leases.clock(session).replace(year=2020)))
        other.tick()
        other.time += seconds
        other.tick()

    @rule(which=st.integers(0, 1), after=st.integers(0, 3), again=st.booleans())
    def taken_over_mid_round(self, which: int, after: int, again: bool) -> None:
        """That supervisor sleeps between two transactions of a round; perhaps what it had runs elsewhere when it goes
        on."""

        def others() -> None:
            self.pause(which, 40.0)
            for number in range(self.submitted if again else 0):
                with suppress(NotNow):
                    self.homes[1 - which].store.run(lambda session, job=f"j-{number + 1}": queue.requeue(session, job))
            self.homes[1 - which].tick()

        self.homes[which].tick_with(after, others)

    @invariant()
    def whole(self) -> None:
        if not self.submitted:
            return
        with self.homes[0].store.read() as session:
            rows = list(session.exec(select(JobRow)))
            claims = Counter(claim.job_id for claim in session.exec(select(ClaimRow)))
            by_name = {row.job_id: row for row in session.exec(select(ArtifactRow))}
            events = {row.id: history.list_events(session, row.id) for row in rows}
        live, states = [row for row in rows if row.state in LIVE], {row.id: JobState(row.state) for row in rows}
        assert claims == {row.id: count_units(row) for row in live}
        assert all(states[str(row.after)] is JobState.SUCCEEDED for row in live if row.after)
        assert set(by_name) == {row.id for row in rows if row.state == JobState.SUCCEEDED}
        for row in by_name.values():
            artifact_folder.verify(Path(row.path), artifact_folder.read_manifest(Path(row.path)))
        for row in rows:
            assert [seq for seq, _ in events[row.id]] == list(range(1, len(events[row.id]) + 1))
            counts = Counter(event.message for _, event in events[row.id] if event.kind == "note")
            assert all(number == 1 for number in counts.values()), counts
            done = [event for _, event in events[row.id] if event.message == "Succeeded."]
            assert len(done) == (row.state == JobState.SUCCEEDED)
            most = terms_of(row).retries
            assert row.retried <= (max(policy.retries for policy in POLICIES.values()) if most is None else most)
            assert not row.aside or (row.state in RESUMABLE and row.strikes >= MOST_STRIKES)
            assert self.done.setdefault(row.id, row.attempt) == row.attempt or row.id not in by_name
            if row.id not in by_name:
                del self.done[row.id]
        starts = Counter((worker.job, worker.attempt) for worker in self.world.workers)
        assert all(number == 1 for number in starts.values()), starts

    def settle(self) -> None:
        """Nothing is stuck: with workers that do as they should, everything ends, and nothing is left."""
        for _ in range(60):
            self.wait()
            for home in self.homes:
                home.supervisor.beat()
                if not home.supervisor.tick() and home.supervisor.draining:
                    home.restart()  # as whoever waits for a job starts the next one
            for worker in self.world.alive():
                worker.stop() if worker.asked else worker.succeed()
            with self.homes[0].store.read() as session:
                states = list(session.exec(select(JobRow.state)))
            if all(state in TERMINAL for state in states):
                break
        for home in self.homes:
            home.tick()
        self.whole()
        assert all(state in TERMINAL for state in states), states
        assert {JobState(state) for state in states} <= {JobState.SUCCEEDED} | RESUMABLE
        self.dependents_ended_with_their_first()
        assert self.world.alive() == []
        with self.homes[0].store.read() as session:
            assert list(session.exec(select(ClaimRow))) == []
            assert session.execute(text("SELECT count(*) FROM jobs")).scalar() == self.submitted

    def dependents_ended_with_their_first(self) -> None:
        with self.homes[0].store.read() as session:
            rows = {row.id: row for row in session.exec(select(JobRow))}
        for row in rows.values():
            if row.after and rows[row.after].state != JobState.SUCCEEDED:
                assert row.state == JobState.CANCELLED
                assert row.ending != Ending.DEPENDENCY or row.after in str(row.cause)


def count_units(row: JobRow) -> int:
    """How many units of its host a live job has."""
    units = claimed_units(Claim.model_validate_json(row.claim), CAPACITY)
    return units.cores + units.memory + len(units.named)


def terms_of(row: JobRow) -> Terms:
    return Terms.model_validate_json(row.terms)


TestTwoSupervisors = TwoSupervisors.TestCase
TestTwoSupervisors.settings = examples(60, quick=6, stateful_step_count=40)


@pytest.mark.process
def test_the_same_on_postgresql(postgres: Postgres) -> None:
    class OnPostgres(TwoSupervisors):
        def url(self) -> str:
            return postgres.new()

    run_state_machine_as_test(OnPostgres, settings=examples(20, quick=2, stateful_step_count=30))
