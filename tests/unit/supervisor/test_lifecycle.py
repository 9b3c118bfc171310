"""A job's life as supervisors see it: dependencies, tries again, limits of time, jobs put aside, drained
supervisors."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import Session

from backend.domain.errors import KeyReused, NotNow
from backend.domain.jobs.claims import Claim
from backend.domain.jobs.endings import MOST_STRIKES, Ending
from backend.domain.jobs.jobs import Handle, JobState, WorkerState
from backend.domain.jobs.terms import Priority, Terms
from backend.domain.machine.device import GIB
from backend.store import history, leases, queue
from backend.store.database import StoreUnavailable
from backend.store.tables import JobRow
from tests.simulated_workers import Crash, Home, World

MakeHome = Callable[..., Home]


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


def job_row(home: Home, name: str) -> JobRow:
    with home.store.read() as session:
        return queue.get(session, name)


def messages_of(home: Home, name: str) -> str:
    with home.store.read() as session:
        return " ".join(event.message or "" for _, event in history.list_events(session, name))


def later(home: Home, name: str, column: str) -> None:
    """As if that moment had come."""
    row = job_row(home, name)
    with home.store.session() as session:
        past = leases.clock(session) - timedelta(seconds=1)
        leases.change(session, leases.read_lease(row), list(JobState), **{column: past})


def test_what_comes_after_another_starts_once_that_has_succeeded(simulated_home: Home, world: World) -> None:
    submit(simulated_home, "j-1")
    submit(simulated_home, "j-2", after="j-1")
    simulated_home.tick()
    simulated_home.tick()
    assert [worker.job for worker in world.workers] == ["j-1"]
    world.workers[0].succeed()
    simulated_home.tick()
    assert [worker.job for worker in world.workers] == ["j-1", "j-2"]


@pytest.mark.parametrize("how", ["fail", "cancel", "cancel while it waits"])
def test_a_job_and_its_successors_are_cancelled_with_their_cause_if_the_first_fails(
    simulated_home: Home, world: World, how: str
) -> None:
    submit(simulated_home, "j-1")
    submit(simulated_home, "j-2", after="j-1")
    submit(simulated_home, "j-3", after="j-2")
    if how != "cancel while it waits":
        simulated_home.tick()
    if how == "fail":
        world.workers[0].fail()
    else:
        simulated_home.store.run(lambda session: queue.request_cancel(session, "j-1", "alice"))
    for _ in range(2):
        simulated_home.tick()
        for worker in world.alive():
            worker.stop()
    second, third = job_row(simulated_home, "j-2"), job_row(simulated_home, "j-3")
    assert (second.state, second.ending) == (JobState.CANCELLED, Ending.DEPENDENCY)
    assert f"j-1, which had to succeed first and {'failed' if how == 'fail' else 'was cancelled'}" in str(second.error)
    assert third.state == JobState.CANCELLED and "j-2" in str(third.cause)
    assert len(world.workers) == (0 if how == "cancel while it waits" else 1)


def test_resumed_it_brings_along_what_was_cancelled_with_it(simulated_home: Home, world: World) -> None:
    submit(simulated_home, "j-1")
    submit(simulated_home, "j-2", after="j-1")
    simulated_home.tick()
    world.workers[0].fail()
    simulated_home.tick()
    with pytest.raises(NotNow, match="comes after j-1, which is failed"):
        simulated_home.store.run(lambda session: queue.requeue(session, "j-2"))
    simulated_home.store.run(lambda session: queue.requeue(session, "j-1"))
    assert job_row(simulated_home, "j-2").state == JobState.QUEUED
    for number in (1, 2):
        simulated_home.tick()
        world.workers[number].succeed()
        simulated_home.tick()
    assert job_row(simulated_home, "j-2").state == JobState.SUCCEEDED


def test_nothing_is_submitted_after_a_job_that_failed(simulated_home: Home, world: World) -> None:
    submit(simulated_home, "j-1")
    simulated_home.tick()
    world.workers[0].fail()
    simulated_home.tick()
    with pytest.raises(NotNow, match="j-1, which has to succeed first, is failed"):
        submit(simulated_home, "j-2", after="j-1")


def test_a_full_disk_is_tried_again_later_and_bad_input_never(simulated_home: Home, world: World) -> None:
    submit(simulated_home, "j-1", claim=Claim(cores=1, gpus=()))
    submit(simulated_home, "j-2", claim=Claim(cores=1, gpus=()))
    simulated_home.tick()
    simulated_home.tick()
    world.workers[0].fill()
    world.workers[1].fail()
    simulated_home.tick()
    full, wrong = job_row(simulated_home, "j-1"), job_row(simulated_home, "j-2")
    assert (full.state, full.attempt, full.retried, full.ending) == (JobState.QUEUED, 2, 1, Ending.DISK)
    assert "The disk filled up: tried again in 30 s." in messages_of(simulated_home, "j-1")
    assert (wrong.state, wrong.attempt, wrong.error) == (JobState.FAILED, 1, "The recipe is wrong.")
    simulated_home.tick()
    assert len(world.workers) == 2
    later(simulated_home, "j-1", "not_before")
    simulated_home.tick()
    assert len(world.workers) == 3


def test_a_job_waits_for_disk_that_is_not_there(simulated_home: Home, world: World) -> None:
    submit(simulated_home, "j-1", claim=Claim(disk_bytes=10**15))
    submit(simulated_home, "j-2")
    simulated_home.tick()
    assert [worker.job for worker in world.workers] == ["j-2"]


def test_a_job_that_ends_its_worker_each_time_is_put_aside_until_it_is_released(
    simulated_home: Home, world: World
) -> None:
    submit(simulated_home, "j-1")
    for _ in range(MOST_STRIKES):
        simulated_home.tick()
        world.workers[-1].alive = False
        simulated_home.tick()
        if job_row(simulated_home, "j-1").state == JobState.QUEUED:
            later(simulated_home, "j-1", "not_before")
    row = job_row(simulated_home, "j-1")
    assert (row.state, row.aside, len(world.workers)) == (JobState.LOST, True, MOST_STRIKES)
    assert "put aside" in str(row.error) and "whetstone jobs release j-1" in str(row.error)
    with pytest.raises(NotNow, match="whetstone jobs release j-1"):
        simulated_home.store.run(lambda session: queue.requeue(session, "j-1"))
    simulated_home.store.run(lambda session: queue.release(session, "j-1"))
    simulated_home.tick()
    world.workers[-1].succeed()
    simulated_home.tick()
    assert (job_row(simulated_home, "j-1").state, job_row(simulated_home, "j-1").strikes) == (JobState.SUCCEEDED, 0)


def test_a_job_at_which_every_supervisor_ends_is_put_aside_and_others_go_on(
    simulated_home: Home, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a segmentation fault at what it wrote: each supervisor dies at its first look."""
    submit(simulated_home, "j-1", claim=Claim(cores=1, gpus=()))
    submit(simulated_home, "j-2", claim=Claim(cores=1, gpus=()))
    simulated_home.tick()
    simulated_home.tick()
    launcher = type(simulated_home.supervisor.launcher)
    poll = launcher.poll

    def dies(self: Any, handle: Handle) -> WorkerState:
        if handle.data["number"] == 0:
            raise Crash
        return poll(self, handle)

    monkeypatch.setattr(launcher, "poll", dies)
    for _ in range(MOST_STRIKES):
        simulated_home.tick()
    simulated_home.tick()
    row = job_row(simulated_home, "j-1")
    assert (row.state, row.aside, world.workers[0].alive) == (JobState.LOST, True, False)
    assert f"{MOST_STRIKES} supervisors in a row ended at this job" in str(row.error)
    assert (job_row(simulated_home, "j-2").state, world.workers[1].alive) == (JobState.RUNNING, True)


def test_a_supervisor_that_is_killed_again_and_again_puts_no_healthy_job_aside(
    simulated_home: Home, world: World
) -> None:
    submit(simulated_home, "j-1")
    simulated_home.tick()
    for _ in range(3 * MOST_STRIKES):
        simulated_home.tick(crash_after=1)
        simulated_home.tick()
    assert (job_row(simulated_home, "j-1").state, job_row(simulated_home, "j-1").strikes) == (JobState.RUNNING, 0)


def test_each_limit_of_time_ends_a_job_with_its_own_sentence(simulated_home: Home, world: World) -> None:
    small = Claim(cores=1, gpus=())
    submit(simulated_home, "j-1", claim=small, run_timeout_s=60.0)
    submit(simulated_home, "j-2", claim=small, start_timeout_s=20.0)
    submit(simulated_home, "j-3", queue_timeout_s=600.0)
    simulated_home.tick()
    simulated_home.tick()
    world.workers[0].say()
    later(simulated_home, "j-3", "queue_until")
    simulated_home.tick()
    assert job_row(simulated_home, "j-3").error == "Cancelled before it started, by its queue timeout of 10 min."
    assert job_row(simulated_home, "j-3").ending == Ending.QUEUE_TIMEOUT
    for _ in range(40):
        simulated_home.time += 2.0
        simulated_home.tick()
        for worker in world.alive():
            if worker.asked:
                worker.stop()
    first, second = job_row(simulated_home, "j-1"), job_row(simulated_home, "j-2")
    assert first.error == "Stopped by its run timeout of 60 s; nothing half-written remains."
    assert second.error == "Stopped by its start timeout of 20 s; nothing half-written remains."
    assert (first.state, first.ending, second.ending) == (JobState.CANCELLED, Ending.RUN_TIMEOUT, Ending.START_TIMEOUT)


def test_a_pause_of_the_machine_is_no_time_of_the_job(simulated_home: Home, world: World) -> None:
    submit(simulated_home, "j-1", run_timeout_s=60.0)
    simulated_home.tick()
    simulated_home.time += 86400.0
    simulated_home.tick()
    simulated_home.tick()
    assert (job_row(simulated_home, "j-1").state, job_row(simulated_home, "j-1").cancel_requested) == (
        JobState.RUNNING,
        False,
    )


def test_time_in_the_queue_begins_once_the_first_has_succeeded(simulated_home: Home, world: World) -> None:
    submit(simulated_home, "j-1")
    submit(simulated_home, "j-2", after="j-1", queue_timeout_s=600.0)
    assert job_row(simulated_home, "j-2").queue_until is None
    simulated_home.tick()
    world.workers[0].succeed()
    simulated_home.supervisor.tick(start=False)
    assert job_row(simulated_home, "j-2").queue_until is not None


def test_a_drained_supervisor_takes_no_new_jobs_and_ends_with_the_last(simulated_home: Home, world: World) -> None:
    submit(simulated_home, "j-1", claim=Claim(cores=1, gpus=()))
    simulated_home.tick()
    submit(simulated_home, "j-2", claim=Claim(cores=1, gpus=()))
    assert (
        simulated_home.store.run(lambda session: leases.drain(session, "one", str(simulated_home.settings.home))) == 1
    )
    simulated_home.supervisor.beat()
    assert simulated_home.supervisor.tick() and simulated_home.supervisor.draining
    assert [worker.job for worker in world.workers] == ["j-1"]
    world.workers[0].succeed()
    simulated_home.tick()
    assert not simulated_home.supervisor.tick()
    simulated_home.restart()
    simulated_home.tick()
    assert [worker.job for worker in world.workers] == ["j-1", "j-2"]


def test_a_job_that_yields_may_end_in_the_round_in_which_its_supervisor_is_drained(
    simulated_home: Home, world: World
) -> None:
    submit(simulated_home, "j-1", yields=True)
    submit(simulated_home, "j-2", yields=True)
    simulated_home.tick()
    simulated_home.store.run(lambda session: leases.drain(session, "one", str(simulated_home.settings.home)))
    world.workers[0].fail()
    assert simulated_home.supervisor.tick() and simulated_home.supervisor.draining
    assert job_row(simulated_home, "j-1").state == JobState.FAILED and not simulated_home.supervisor.tick()


def test_the_same_key_is_the_same_job_and_with_another_specification_it_is_refused(simulated_home: Home) -> None:
    first = submit(simulated_home, "j-1", submission="k", spec='{"kind": "install", "engine": "serve"}')
    assert submit(simulated_home, "j-2", submission="k", spec='{"kind": "install", "engine": "serve"}').id == first.id
    with pytest.raises(KeyReused, match="Job j-1 was submitted with that key and asks for something else"):
        submit(simulated_home, "j-3", submission="k", spec='{"kind": "install", "engine": "quality"}')
    same = submit(simulated_home, "j-4", submission="m", spec='{"model": "m", "seen": {"/m": "1"}}')
    assert submit(simulated_home, "j-5", submission="m", spec='{"model": "m", "seen": {"/m": "2"}}').id == same.id


def test_a_job_of_high_priority_and_one_moved_to_the_front_go_first(simulated_home: Home, world: World) -> None:
    for name in ("j-1", "j-2", "j-3"):
        submit(simulated_home, name)
    submit(simulated_home, "j-4", priority=Priority.HIGH)
    simulated_home.store.run(lambda session: queue.prioritize(session, "j-1", Priority.LOW))
    simulated_home.store.run(lambda session: queue.move_to_front(session, "j-3"))
    for number in range(4):
        simulated_home.tick()
        world.workers[number].succeed()
        simulated_home.tick()
    assert [worker.job for worker in world.workers] == ["j-3", "j-4", "j-2", "j-1"]


def test_two_that_fit_run_beside_each_other_on_cores_of_their_own(simulated_home: Home, world: World) -> None:
    half = Claim(cores=1, gpus=(), memory_bytes=4 * GIB)
    for name in ("j-1", "j-2", "j-3"):
        submit(simulated_home, name, claim=half)
    for _ in range(3):
        simulated_home.tick()
    assert [worker.job for worker in world.workers] == ["j-1", "j-2"]
    assert [worker.channel.granted().cores for worker in world.workers] == [(0,), (1,)]


@pytest.mark.parametrize("crash_after", range(2, 20, 3))
def test_skypilot_6133_a_job_that_succeeded_is_never_started_again(
    simulated_home: Home, world: World, crash_after: int
) -> None:
    """Whoever died, came late or asked for it."""
    submit(simulated_home, "j-1", retries=20)
    simulated_home.tick()
    stale = job_row(simulated_home, "j-1")
    world.workers[0].succeed()
    simulated_home.tick(crash_after)
    simulated_home.tick()
    assert job_row(simulated_home, "j-1").state == JobState.SUCCEEDED
    with pytest.raises(NotNow, match="j-1 is succeeded"):
        simulated_home.store.run(lambda session: queue.requeue(session, "j-1"))
    with pytest.raises((leases.Fenced, NotNow)):
        simulated_home.supervisor._finisher.fail_or_retry(stale, Ending.NODE, "Its supervisor is gone")
    with pytest.raises((leases.Fenced, NotNow)):
        simulated_home.supervisor._finisher.fail_or_retry(
            job_row(simulated_home, "j-1"), Ending.LOST, "The worker is gone"
        )
    for _ in range(5):
        simulated_home.tick()
    assert (len(world.workers), job_row(simulated_home, "j-1").attempt) == (1, 1)


def live_supervisors(home: Home) -> list[str]:
    with home.store.read() as session:
        return [row.id for row in leases.list_live_supervisors(session)]


def test_a_job_submitted_while_an_idle_supervisor_ends_is_run_by_it(simulated_home: Home, world: World) -> None:
    supervisor = simulated_home.supervisor
    supervisor.beat()
    assert not supervisor.tick(), "it is idle"
    submit(simulated_home, "j-1")
    assert not supervisor.rest() and live_supervisors(simulated_home) == [supervisor.row.id]
    simulated_home.tick()
    assert [worker.job for worker in world.workers] == ["j-1"]


def test_one_that_has_written_down_that_it_ends_is_taken_for_ended(simulated_home: Home) -> None:
    supervisor = simulated_home.supervisor
    supervisor.beat()
    assert supervisor.rest() and live_supervisors(simulated_home) == []
    supervisor.beat()  # the thread of the heartbeat, which ends a moment later
    assert live_supervisors(simulated_home) == []


def test_a_heartbeat_goes_on_where_nobody_could_look_for_work(
    simulated_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(session: Session) -> None:
        raise StoreUnavailable("The database did not answer.")

    supervisor = simulated_home.supervisor
    with monkeypatch.context() as patch:
        patch.setattr(queue, "check_queue", away)
        with pytest.raises(StoreUnavailable):
            supervisor.rest()
    supervisor.beat()
    assert live_supervisors(simulated_home) == [supervisor.row.id]
