"""Named faults of supervisors: each was, or would be, a false verdict about a job."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import select

from backend.artifacts import artifact_folder
from backend.channel import Channel
from backend.domain.errors import WhetstoneError
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.jobs import Event, Handle, JobState
from backend.domain.jobs.terms import Terms
from backend.store import leases, queue
from backend.store.tables import ArtifactRow, JobRow
from backend.supervisor import uploads
from backend.supervisor.attempt import HangDetector
from tests.homes import DATABASE
from tests.simulated_workers import Home, SimulatedLauncher, World

MakeHome = Callable[..., Home]


def submit(home: Home, name: str = "j-1", **terms: Any) -> None:
    """Tried once, where nothing else is asked."""
    text = Terms(**({"retries": 0} | terms)).text
    row = JobRow(id=name, kind="optimize", state=JobState.QUEUED, title="t", owner="t", spec="{}", terms=text)
    home.store.run(lambda session: queue.submit(session, row))


def waits(home: Home, name: str = "j-1") -> None:
    """Until it may be tried again, which is not yet."""
    row = job_row(home, name)
    assert row.state == JobState.QUEUED and row.not_before is not None
    home.tick()
    assert job_row(home, name).state == JobState.QUEUED
    with home.store.session() as session:
        leases.change(session, leases.read_lease(row), list(JobState), not_before=row.not_before.replace(year=2020))


def job_row(home: Home, name: str = "j-1") -> JobRow:
    with home.store.read() as session:
        return queue.get(session, name)


def sleeps(asleep: Home, other: Home) -> None:
    """Past its lease, while the other one looks twice."""
    with asleep.store.session() as session:
        lease = leases.read_lease(job_row(asleep))
        leases.change(session, lease, list(JobState), lease_until=leases.clock(session).replace(year=2020))
    other.tick()
    other.time += leases.LEASE_SECONDS + 1
    other.tick()


@pytest.mark.parametrize("neighbour", [True, False])
def test_the_next_job_starts_in_the_round_in_which_one_ends(
    make_home: MakeHome, world: World, monkeypatch: pytest.MonkeyPatch, neighbour: bool
) -> None:
    """With results put in their place beside the rounds, each small job took a round more."""
    monkeypatch.setattr(uploads, "MOMENT_S", 60.0)  # a busy machine's moment
    first, jobs = make_home("a"), [f"j-{number}" for number in range(6)]
    first.restart(background_uploads=neighbour)
    for name in jobs:
        submit(first, name)
    first.tick()
    for _ in jobs:
        (worker,) = world.alive()
        worker.succeed()
        first.tick()
    assert not world.alive() and len(world.workers) == len(jobs)
    assert {job_row(first, name).state for name in jobs} == {JobState.SUCCEEDED}, (
        "in one round more than there are jobs"
    )


@pytest.mark.parametrize("host", ["one", "two"])
def test_a_supervisor_leaves_the_healthy_jobs_of_another_alone(make_home: MakeHome, world: World, host: str) -> None:
    first, second = make_home("a"), make_home("b", host)
    submit(first)
    first.tick()
    for _ in range(5):
        first.supervisor.beat()
        second.time += 60.0
        second.tick()
    assert (job_row(first).state, world.workers[0].alive) == (JobState.RUNNING, True)
    world.workers[0].succeed()
    first.tick()
    assert job_row(first).state == JobState.SUCCEEDED


def test_a_clock_that_jumps_loses_no_job_whose_supervisor_beats(make_home: MakeHome, world: World) -> None:
    first, second = make_home("a"), make_home("b", "two")
    submit(first)
    first.tick()
    until = job_row(first).lease_until
    assert until is not None
    with first.store.session() as session:  # as if the database's clock had been set a year on
        leases.change(session, leases.read_lease(job_row(first)), list(JobState), lease_until=until.replace(year=2020))
    second.tick()
    second.time += leases.LEASE_SECONDS - 1
    second.tick()
    first.supervisor.beat()
    second.time += leases.LEASE_SECONDS
    second.tick()
    assert (job_row(first).state, world.workers[0].alive) == (JobState.RUNNING, True)


class Locking(SimulatedLauncher):
    """Another program locks the database as soon as the worker has started."""

    def __init__(self, world: World, home: str, database: Path) -> None:
        super().__init__(world, home)
        self.lock = sqlite3.connect(database, isolation_level=None)

    def start(self, job_id: str, channel: Channel) -> Handle:
        started = super().start(job_id, channel)
        self.lock.execute("BEGIN IMMEDIATE")
        return started


def test_a_database_locked_between_claim_and_record_costs_no_worker(
    make_home: MakeHome, world: World, tmp_path: Path
) -> None:
    first = make_home("a")
    submit(first)
    launcher = first.supervisor.launcher = Locking(world, str(first.settings.home), tmp_path / DATABASE)
    with first.store.engine.connect().execution_options(writes=False) as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout=50")
    with pytest.raises(WhetstoneError, match="locked"):
        first.tick()
    assert job_row(first).state == JobState.STARTING
    launcher.lock.rollback()
    first.tick()
    result = job_row(first)
    assert (result.state, result.attempt, [worker.alive for worker in world.workers]) == (JobState.RUNNING, 1, [True])


def test_a_supervisor_that_was_thought_gone_changes_nothing_when_it_comes_back(
    make_home: MakeHome, world: World
) -> None:
    first, second = make_home("a", "one"), make_home("b", "two")
    submit(first)
    first.tick()
    sleeps(first, second)
    assert job_row(first).state == JobState.LOST and "supervisor on one" in str(job_row(first).error)
    second.store.run(lambda session: queue.requeue(session, "j-1"))
    second.tick()
    late, again = world.workers
    late.say()
    late.succeed()
    first.tick()
    assert (job_row(first).state, job_row(first).attempt) == (JobState.RUNNING, 2)
    again.succeed()
    second.tick()
    with first.store.read() as session:
        (created,) = session.exec(select(ArtifactRow)).all()
    assert created.path.startswith(str(second.settings.home)) and not list(first.settings.artifacts.glob("*"))


@pytest.mark.parametrize("again", [False, True], ids=["lost", "and run again elsewhere"])
def test_a_job_that_is_taken_over_while_its_result_is_verified_is_not_registered(
    make_home: MakeHome, world: World, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    first, second = make_home("a", "one"), make_home("b", "two")
    submit(first)
    first.tick()
    world.workers[0].succeed()
    verify = artifact_folder.verify

    def slow(folder: Path, manifest: Manifest) -> None:
        verify(folder, manifest)
        monkeypatch.undo()
        sleeps(first, second)
        if again:
            second.store.run(lambda session: queue.requeue(session, "j-1"))
            second.tick()

    monkeypatch.setattr(artifact_folder, "verify", slow)
    first.tick()
    assert (job_row(first).state, job_row(first).attempt) == ((JobState.RUNNING, 2) if again else (JobState.LOST, 1))
    with first.store.read() as session:
        assert session.exec(select(ArtifactRow)).all() == []
    assert list(first.settings.artifacts.glob("*")) == []


def test_its_worker_is_ended_when_it_comes_back(make_home: MakeHome, world: World) -> None:
    first, second = make_home("a", "one"), make_home("b", "two")
    submit(first)
    first.tick()
    sleeps(first, second)
    assert world.workers[0].alive
    first.tick()
    assert not world.workers[0].alive


def test_the_next_supervisor_of_its_home_ends_it_too_and_no_other(make_home: MakeHome, world: World) -> None:
    first, second = make_home("a", "one"), make_home("b", "two")
    submit(first)
    submit(second, "j-2")
    first.tick()
    second.tick()
    first.restart()
    assert [worker.alive for worker in world.workers] == [True, True], "it took up its own"
    sleeps(first, second)
    assert job_row(first).state == JobState.LOST and world.workers[0].alive
    first.restart()
    assert [worker.alive for worker in world.workers] == [False, True]


def test_what_another_machine_runs_is_asked_to_end_before_it_is_given_up(make_home: MakeHome, world: World) -> None:
    first, second = make_home("a", "one"), make_home("b", "two")
    submit(first)
    first.tick()
    world.elsewhere = True
    sleeps(first, second)
    assert job_row(first).state == JobState.RUNNING
    world.elsewhere = False
    second.tick()
    assert job_row(first).state == JobState.LOST


def test_a_worker_that_cannot_be_ended_now_keeps_no_other_job_waiting(
    make_home: MakeHome, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_home("a", "one"), make_home("b", "two")
    submit(first)
    first.tick()
    sleeps(first, second)

    def fails(*_: Any) -> None:
        raise WhetstoneError("It may still run there")

    with monkeypatch.context() as until_then:
        until_then.setattr(SimulatedLauncher, "sweep", fails)
        submit(first, "j-2")
        first.tick()
        assert job_row(first, "j-2").state == JobState.RUNNING and world.workers[0].alive
    first.tick()
    assert not world.workers[0].alive


def test_while_an_artifact_is_verified_others_write(
    make_home: MakeHome, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, written = make_home("a"), []
    submit(first)
    first.tick()
    world.workers[0].succeed()
    verify = artifact_folder.verify

    def watched(folder: Path, manifest: Manifest) -> None:
        with sqlite3.connect(tmp_path / DATABASE, timeout=0.0) as other:
            other.execute("UPDATE jobs SET title = 'while it is verified'")
        written.append(folder)
        verify(folder, manifest)

    monkeypatch.setattr(artifact_folder, "verify", watched)
    first.tick()
    assert len(written) == 1 and (job_row(first).state, job_row(first).title) == (
        JobState.SUCCEEDED,
        "while it is verified",
    )


def test_a_worker_stopped_from_outside_is_queued_again_and_not_called_cancelled(
    make_home: MakeHome, world: World
) -> None:
    first = make_home("a")
    submit(first, retries=None)
    for attempt in (1, 2, 3):
        first.tick()
        assert (job_row(first).state, job_row(first).attempt) == (JobState.RUNNING, attempt)
        world.workers[-1].stop()
        first.tick()
        if attempt < 3:
            waits(first)
    assert job_row(first).state == JobState.LOST and "stopped from outside" in str(job_row(first).error)


def test_a_cancel_says_who_asked(make_home: MakeHome, world: World) -> None:
    first = make_home("a")
    submit(first)
    first.tick()
    first.store.run(lambda session: queue.request_cancel(session, "j-1", "alice"))
    first.tick()
    assert world.workers[0].asked
    world.workers[0].stop()
    first.tick()
    assert (job_row(first).state, job_row(first).cause) == (JobState.CANCELLED, "alice")


def test_only_looks_count_as_silence() -> None:
    detector = HangDetector(0.0)
    for now in range(1, 10):
        detector.observe(now, [], float(now))
    assert detector.hang_reason(5.0, None) is None
    detector.observe(9, [], 1000.0)  # the supervisor itself was paused
    assert detector.silent_s <= 3.0
    for now in range(1001, 1006):
        detector.observe(9, [], float(now))
    assert "no sign of life for 5 s" in str(detector.hang_reason(5.0, None))


def test_a_worker_that_lives_but_does_nothing_is_hung_too() -> None:
    detector, idle = HangDetector(0.0), Event(kind="resource", data={"cpu_percent": 0.4})
    for now in range(1, 20):
        detector.observe(now, [idle], float(now))
    assert "used no processor" in str(detector.hang_reason(5.0, 10.0)) and detector.hang_reason(5.0, None) is None
    detector.observe(20, [Event(kind="resource", data={"cpu_percent": 90.0})], 20.0)
    assert detector.hang_reason(5.0, 10.0) is None
