"""A job's life as supervisors see it: dependencies, tries again, limits of time, jobs put aside, drained
supervisors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import KeyReused, NotNow
from backend.domain.jobs.claims import Claim
from backend.domain.jobs.endings import MOST_STRIKES, Ending
from backend.domain.jobs.jobs import Handle, JobState, WorkerState
from backend.domain.jobs.terms import Priority, Terms
from backend.domain.machine.device import GIB
from backend.store import history, leases, queue
from backend.store.tables import JobRow
from tests.homes import DATABASE, open_home
from tests.simulated_workers import Crash, Home, World

MakeHome = Callable[..., Home]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def home(tmp_path: Path, world: World) -> Home:
    open_home(tmp_path)
    return Home(world, tmp_path / "a", f"sqlite:///{tmp_path / DATABASE}", "one")


def submit(home: Home, name: str, *, after: str | None = None, claim: Claim | None = None, **fields: Any) -> JobRow:
    terms = Terms(**{key: fields.pop(key) for key in Terms.model_fields if key in fields})
    row = JobRow(
        id=name,
        kind="optimize",
        state=JobState.QUEUED,
        title=name,
        owner="t",
        terms=terms.text,
        after=after,
        claim=(claim or Claim()).text,
        **({"spec": "{}"} | fields),
    )
    return home.store.run(lambda session: queue.submit(session, row))


def seen(home: Home, name: str) -> JobRow:
    with home.store.read() as session:
        return queue.get(session, name)


def said(home: Home, name: str) -> str:
    with home.store.read() as session:
        return " ".join(event.message or "" for _, event in history.list_events(session, name))


def later(home: Home, name: str, column: str) -> None:
    """As if that moment had come."""
    row = seen(home, name)
    with home.store.session() as session:
        past = leases.clock(session) - timedelta(seconds=1)
        leases.change(session, leases.read_lease(row), list(JobState), **{column: past})


def test_what_comes_after_another_starts_once_that_has_succeeded(home: Home, world: World) -> None:
    submit(home, "j-1")
    submit(home, "j-2", after="j-1")
    home.tick()
    home.tick()
    assert [worker.job for worker in world.workers] == ["j-1"]
    world.workers[0].succeed()
    home.tick()
    assert [worker.job for worker in world.workers] == ["j-1", "j-2"]


@pytest.mark.parametrize("how", ["fail", "cancel", "cancel while it waits"])
def test_a_job_and_its_successors_are_cancelled_with_their_cause_if_the_first_fails(
    home: Home, world: World, how: str
) -> None:
    submit(home, "j-1")
    submit(home, "j-2", after="j-1")
    submit(home, "j-3", after="j-2")
    if how != "cancel while it waits":
        home.tick()
    if how == "fail":
        world.workers[0].fail()
    else:
        home.store.run(lambda session: queue.request_cancel(session, "j-1", "alice"))
    for _ in range(2):
        home.tick()
        for worker in world.alive():
            worker.stop()
    second, third = seen(home, "j-2"), seen(home, "j-3")
    assert (second.state, second.ending) == (JobState.CANCELLED, Ending.DEPENDENCY)
    assert f"j-1, which had to succeed first and {'failed' if how == 'fail' else 'was cancelled'}" in str(second.error)
    assert third.state == JobState.CANCELLED and "j-2" in str(third.cause)
    assert len(world.workers) == (0 if how == "cancel while it waits" else 1)


def test_resumed_it_brings_along_what_was_cancelled_with_it(home: Home, world: World) -> None:
    submit(home, "j-1")
    submit(home, "j-2", after="j-1")
    home.tick()
    world.workers[0].fail()
    home.tick()
    with pytest.raises(NotNow, match="comes after j-1, which is failed"):
        home.store.run(lambda session: queue.requeue(session, "j-2"))
    home.store.run(lambda session: queue.requeue(session, "j-1"))
    assert seen(home, "j-2").state == JobState.QUEUED
    for number in (1, 2):
        home.tick()
        world.workers[number].succeed()
        home.tick()
    assert seen(home, "j-2").state == JobState.SUCCEEDED


def test_nothing_is_submitted_after_a_job_that_failed(home: Home, world: World) -> None:
    submit(home, "j-1")
    home.tick()
    world.workers[0].fail()
    home.tick()
    with pytest.raises(NotNow, match="j-1, which has to succeed first, is failed"):
        submit(home, "j-2", after="j-1")


def test_a_full_disk_is_tried_again_later_and_bad_input_never(home: Home, world: World) -> None:
    submit(home, "j-1", claim=Claim(cores=1, gpus=()))
    submit(home, "j-2", claim=Claim(cores=1, gpus=()))
    home.tick()
    home.tick()
    world.workers[0].fill()
    world.workers[1].fail()
    home.tick()
    full, wrong = seen(home, "j-1"), seen(home, "j-2")
    assert (full.state, full.attempt, full.retried, full.ending) == (JobState.QUEUED, 2, 1, Ending.DISK)
    assert "The disk filled up: tried again in 30 s." in said(home, "j-1")
    assert (wrong.state, wrong.attempt, wrong.error) == (JobState.FAILED, 1, "The recipe is wrong.")
    home.tick()
    assert len(world.workers) == 2
    later(home, "j-1", "not_before")
    home.tick()
    assert len(world.workers) == 3


def test_a_job_waits_for_disk_that_is_not_there(home: Home, world: World) -> None:
    submit(home, "j-1", claim=Claim(disk_bytes=10**15))
    submit(home, "j-2")
    home.tick()
    assert [worker.job for worker in world.workers] == ["j-2"]


def test_a_job_that_ends_its_worker_each_time_is_put_aside_until_it_is_released(home: Home, world: World) -> None:
    submit(home, "j-1")
    for _ in range(MOST_STRIKES):
        home.tick()
        world.workers[-1].alive = False
        home.tick()
        if seen(home, "j-1").state == JobState.QUEUED:
            later(home, "j-1", "not_before")
    row = seen(home, "j-1")
    assert (row.state, row.aside, len(world.workers)) == (JobState.LOST, True, MOST_STRIKES)
    assert "put aside" in str(row.error) and "whetstone jobs release j-1" in str(row.error)
    with pytest.raises(NotNow, match="whetstone jobs release j-1"):
        home.store.run(lambda session: queue.requeue(session, "j-1"))
    home.store.run(lambda session: queue.release(session, "j-1"))
    home.tick()
    world.workers[-1].succeed()
    home.tick()
    assert (seen(home, "j-1").state, seen(home, "j-1").strikes) == (JobState.SUCCEEDED, 0)


def test_a_job_at_which_every_supervisor_ends_is_put_aside_and_others_go_on(
    home: Home, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a segmentation fault at what it wrote: each supervisor dies at its first look."""
    submit(home, "j-1", claim=Claim(cores=1, gpus=()))
    submit(home, "j-2", claim=Claim(cores=1, gpus=()))
    home.tick()
    home.tick()
    launcher = type(home.supervisor.launcher)
    poll = launcher.poll

    def dies(self: Any, handle: Handle) -> WorkerState:
        if handle.data["number"] == 0:
            raise Crash
        return poll(self, handle)

    monkeypatch.setattr(launcher, "poll", dies)
    for _ in range(MOST_STRIKES):
        home.tick()
    home.tick()
    row = seen(home, "j-1")
    assert (row.state, row.aside, world.workers[0].alive) == (JobState.LOST, True, False)
    assert f"{MOST_STRIKES} supervisors in a row ended at this job" in str(row.error)
    assert (seen(home, "j-2").state, world.workers[1].alive) == (JobState.RUNNING, True)


def test_a_supervisor_that_is_killed_again_and_again_puts_no_healthy_job_aside(home: Home, world: World) -> None:
    submit(home, "j-1")
    home.tick()
    for _ in range(3 * MOST_STRIKES):
        home.tick(crash_after=1)
        home.tick()
    assert (seen(home, "j-1").state, seen(home, "j-1").strikes) == (JobState.RUNNING, 0)


def test_each_limit_of_time_ends_a_job_with_its_own_sentence(home: Home, world: World) -> None:
    small = Claim(cores=1, gpus=())
    submit(home, "j-1", claim=small, run_timeout_s=60.0)
    submit(home, "j-2", claim=small, start_timeout_s=20.0)
    submit(home, "j-3", queue_timeout_s=600.0)
    home.tick()
    home.tick()
    world.workers[0].say()
    later(home, "j-3", "queue_until")
    home.tick()
    assert seen(home, "j-3").error == "Cancelled before it started, by its queue timeout of 10 min."
    assert seen(home, "j-3").ending == Ending.QUEUE_TIMEOUT
    for _ in range(40):
        home.time += 2.0
        home.tick()
        for worker in world.alive():
            if worker.asked:
                worker.stop()
    first, second = seen(home, "j-1"), seen(home, "j-2")
    assert first.error == "Stopped by its run timeout of 60 s; nothing half-written remains."
    assert second.error == "Stopped by its start timeout of 20 s; nothing half-written remains."
    assert (first.state, first.ending, second.ending) == (JobState.CANCELLED, Ending.RUN_TIMEOUT, Ending.START_TIMEOUT)


def test_a_pause_of_the_machine_is_no_time_of_the_job(home: Home, world: World) -> None:
    submit(home, "j-1", run_timeout_s=60.0)
    home.tick()
    home.time += 86400.0
    home.tick()
    home.tick()
    assert (seen(home, "j-1").state, seen(home, "j-1").cancel_requested) == (JobState.RUNNING, False)


def test_time_in_the_queue_begins_once_the_first_has_succeeded(home: Home, world: World) -> None:
    submit(home, "j-1")
    submit(home, "j-2", after="j-1", queue_timeout_s=600.0)
    assert seen(home, "j-2").queue_until is None
    home.tick()
    world.workers[0].succeed()
    home.supervisor.tick(start=False)
    assert seen(home, "j-2").queue_until is not None


def test_a_drained_supervisor_takes_no_new_jobs_and_ends_with_the_last(home: Home, world: World) -> None:
    submit(home, "j-1", claim=Claim(cores=1, gpus=()))
    home.tick()
    submit(home, "j-2", claim=Claim(cores=1, gpus=()))
    assert home.store.run(lambda session: leases.drain(session, "one", str(home.settings.home))) == 1
    home.supervisor.beat()
    assert home.supervisor.tick() and home.supervisor.draining
    assert [worker.job for worker in world.workers] == ["j-1"]
    world.workers[0].succeed()
    home.tick()
    assert not home.supervisor.tick()
    home.restart()
    home.tick()
    assert [worker.job for worker in world.workers] == ["j-1", "j-2"]


def test_a_job_that_yields_may_end_in_the_round_in_which_its_supervisor_is_drained(home: Home, world: World) -> None:
    submit(home, "j-1", yields=True)
    submit(home, "j-2", yields=True)
    home.tick()
    home.store.run(lambda session: leases.drain(session, "one", str(home.settings.home)))
    world.workers[0].fail()
    assert home.supervisor.tick() and home.supervisor.draining
    assert seen(home, "j-1").state == JobState.FAILED and not home.supervisor.tick()


def test_the_same_key_is_the_same_job_and_with_another_specification_it_is_refused(home: Home) -> None:
    first = submit(home, "j-1", submission="k", spec='{"kind": "install", "engine": "serve"}')
    assert submit(home, "j-2", submission="k", spec='{"kind": "install", "engine": "serve"}').id == first.id
    with pytest.raises(KeyReused, match="Job j-1 was submitted with that key and asks for something else"):
        submit(home, "j-3", submission="k", spec='{"kind": "install", "engine": "quality"}')
    same = submit(home, "j-4", submission="m", spec='{"model": "m", "seen": {"/m": "1"}}')
    assert submit(home, "j-5", submission="m", spec='{"model": "m", "seen": {"/m": "2"}}').id == same.id


def test_a_job_of_high_priority_and_one_moved_to_the_front_go_first(home: Home, world: World) -> None:
    for name in ("j-1", "j-2", "j-3"):
        submit(home, name)
    submit(home, "j-4", priority=Priority.HIGH)
    home.store.run(lambda session: queue.prioritize(session, "j-1", Priority.LOW))
    home.store.run(lambda session: queue.move_to_front(session, "j-3"))
    for number in range(4):
        home.tick()
        world.workers[number].succeed()
        home.tick()
    assert [worker.job for worker in world.workers] == ["j-3", "j-4", "j-2", "j-1"]


def test_two_that_fit_run_beside_each_other_on_cores_of_their_own(home: Home, world: World) -> None:
    half = Claim(cores=1, gpus=(), memory_bytes=4 * GIB)
    for name in ("j-1", "j-2", "j-3"):
        submit(home, name, claim=half)
    for _ in range(3):
        home.tick()
    assert [worker.job for worker in world.workers] == ["j-1", "j-2"]
    assert [worker.channel.granted().cores for worker in world.workers] == [(0,), (1,)]


@pytest.mark.parametrize("crash_after", range(2, 20, 3))
def test_skypilot_6133_a_job_that_succeeded_is_never_started_again(home: Home, world: World, crash_after: int) -> None:
    """Whoever died, came late or asked for it."""
    submit(home, "j-1", retries=20)
    home.tick()
    stale = seen(home, "j-1")
    world.workers[0].succeed()
    home.tick(crash_after)
    home.tick()
    assert seen(home, "j-1").state == JobState.SUCCEEDED
    with pytest.raises(NotNow, match="j-1 is succeeded"):
        home.store.run(lambda session: queue.requeue(session, "j-1"))
    with pytest.raises((leases.Fenced, NotNow)):
        home.supervisor._finisher.fail_or_retry(stale, Ending.NODE, "Its supervisor is gone")
    with pytest.raises((leases.Fenced, NotNow)):
        home.supervisor._finisher.fail_or_retry(seen(home, "j-1"), Ending.LOST, "The worker is gone")
    for _ in range(5):
        home.tick()
    assert (len(world.workers), seen(home, "j-1").attempt) == (1, 1)
