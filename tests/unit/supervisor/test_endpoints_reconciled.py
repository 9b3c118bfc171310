"""Endpoints as supervisors see them: one live job each, another after a crash, none after too many or a stop."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backend.domain.errors import NotFound, NotNow
from backend.domain.jobs import restarts
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.endpoint_states import EndpointState, find_state
from backend.domain.jobs.jobs import Event, JobKind, JobState
from backend.store import leases, queue
from backend.store.serving import endpoint_rows
from backend.store.tables import EndpointRow, JobRow
from tests.helpers.endpoint_rows import endpoint_spec, put_endpoint
from tests.simulated_workers import Home, World

MakeHome = Callable[..., Home]


def read(home: Home, name: str = "chat") -> tuple[EndpointRow, JobRow | None]:
    with home.store.read() as session:
        return endpoint_rows.get(session, name)


def job_of(home: Home, name: str = "chat") -> JobRow:
    job = read(home, name)[1]
    assert job is not None
    return job


def pass_pause(home: Home, name: str = "chat") -> None:
    """As if the pause before the endpoint's next job were over."""
    with home.store.session() as session:
        row = endpoint_rows.get(session, name)[0]
        row.not_before = leases.clock(session)
        session.add(row)


def crash(home: Home, world: World, *, loads: int = 1) -> None:
    """End the worker as kill -9 does, after it has reported its counts."""
    worker = world.workers[-1]
    counts = {"loads": loads, "requests": 3, "failed_requests": 1, "loaded_s": 2.5, "restarts": 0}
    worker.channel.emit(Event(kind="progress", phase="loaded", data=counts))
    worker.alive = False
    home.tick()
    home.tick()


def start_one(home: Home) -> None:
    put_endpoint(home.store, host=home.host)
    home.tick()
    home.tick()


def test_an_endpoint_gets_one_job_which_takes_nothing_of_the_host(simulated_home: Home, world: World) -> None:
    start_one(simulated_home)
    job = job_of(simulated_home)
    assert (job.kind, job.state, job.owner, job.pinned_host) == (JobKind.ENDPOINT, JobState.RUNNING, "local", "one")
    with simulated_home.store.read() as session:
        assert leases.list_devices(session, job.id) == []
    simulated_home.tick()
    assert [worker.job for worker in world.workers] == [job.id]


def test_two_supervisors_of_a_host_make_one_job_and_another_host_none(make_home: MakeHome, world: World) -> None:
    first, second, elsewhere = make_home("a"), make_home("b"), make_home("c", "two")
    put_endpoint(first.store, host="one")
    for _ in range(3):
        elsewhere.tick()
        first.tick_with(0, second.tick)
    assert len(world.workers) == 1 and read(first)[0].generation == 1


@pytest.mark.parametrize("after", range(0, 40, 3))
def test_a_supervisor_that_dies_anywhere_leaves_one_job(simulated_home: Home, world: World, after: int) -> None:
    put_endpoint(simulated_home.store, host="one")
    simulated_home.tick(crash_after=after)
    for _ in range(12):
        simulated_home.tick()
        if not world.alive() and read(simulated_home)[0].not_before is not None:
            pass_pause(simulated_home)
    assert len(world.alive()) == 1 and world.alive()[0].job == job_of(simulated_home).id


def test_after_a_crash_another_job_follows_with_pauses_that_grow(simulated_home: Home, world: World) -> None:
    start_one(simulated_home)
    crash(simulated_home, world)
    row, job = read(simulated_home)
    assert (row.generation, row.crashes, row.restarts, row.not_before) == (2, 1, 1, None)
    assert (row.loads, row.requests, row.failed_requests, row.loaded_s) == (1, 3, 1, 2.5)
    assert job is not None and job.state == JobState.RUNNING and '"fresh":false' in job.spec
    crash(simulated_home, world)
    row, job = read(simulated_home)
    assert row.not_before is not None and job is not None and job.state == JobState.LOST
    assert len(world.workers) == 2, "the second pause is not over"
    pass_pause(simulated_home)
    simulated_home.tick()
    simulated_home.tick()
    assert len(world.alive()) == 1


def test_after_too_many_crashes_it_has_failed_until_a_person_starts_it(simulated_home: Home, world: World) -> None:
    start_one(simulated_home)
    for _ in range(restarts.MOST_CRASHES + 1):
        crash(simulated_home, world)
        if read(simulated_home)[0].not_before is not None:
            pass_pause(simulated_home)
            simulated_home.tick()
            simulated_home.tick()
    row, job = read(simulated_home)
    assert job is not None and row.reason is not None and row.reason.startswith("It ended 6 times in a row. The worker")
    assert len(world.workers) == restarts.MOST_CRASHES + 1
    simulated_home.tick()
    assert not simulated_home.supervisor.tick(), "nothing is left to do"
    simulated_home.store.run(lambda session: endpoint_rows.start(session, "chat"))
    simulated_home.tick()
    simulated_home.tick()
    row, job = read(simulated_home)
    assert (row.reason, row.crashes, row.restarts, row.loads) == (None, 0, 0, 0) and len(world.alive()) == 1


def test_an_error_of_its_own_is_not_tried_again(simulated_home: Home, world: World) -> None:
    start_one(simulated_home)
    world.workers[-1].fail()
    simulated_home.tick()
    simulated_home.tick()
    assert read(simulated_home)[0].reason == "The recipe is wrong." and len(world.workers) == 1


def test_a_stop_ends_its_job_and_a_start_makes_another(simulated_home: Home, world: World) -> None:
    start_one(simulated_home)
    simulated_home.store.run(lambda session: endpoint_rows.stop(session, "chat", "ann"))
    with pytest.raises(NotNow, match="still stops"):
        simulated_home.store.run(lambda session: endpoint_rows.start(session, "chat"))
    simulated_home.tick()
    assert world.workers[-1].asked
    world.workers[-1].stop()
    simulated_home.tick()
    simulated_home.tick()
    assert job_of(simulated_home).state == JobState.CANCELLED and len(world.workers) == 1
    simulated_home.store.run(lambda session: endpoint_rows.start(session, "chat"))
    simulated_home.tick()
    simulated_home.tick()
    assert len(world.alive()) == 1


def test_a_cancel_of_its_job_stops_the_endpoint(simulated_home: Home, world: World) -> None:
    start_one(simulated_home)
    job = job_of(simulated_home)
    simulated_home.store.run(lambda session: queue.request_cancel(session, job.id, "ann"))
    simulated_home.tick()
    world.workers[-1].stop()
    simulated_home.tick()
    simulated_home.tick()
    assert not read(simulated_home)[0].to_run and not world.alive()


def test_a_drained_supervisor_ends_and_the_next_one_goes_on(simulated_home: Home, world: World) -> None:
    start_one(simulated_home)
    with simulated_home.store.session() as session:
        leases.drain(session, "one", str(simulated_home.settings.home))
    simulated_home.tick()
    assert job_of(simulated_home).ending == Ending.ROOM
    simulated_home.tick()
    world.workers[-1].stop()
    simulated_home.tick()
    assert not simulated_home.supervisor.tick() and len(world.workers) == 1
    simulated_home.restart()
    simulated_home.tick()
    simulated_home.tick()
    row = read(simulated_home)[0]
    assert len(world.alive()) == 1 and (row.crashes, row.restarts) == (0, 0)


def test_an_endpoint_of_a_deleted_artifact_says_so(simulated_home: Home) -> None:
    path = f"{simulated_home.settings.artifacts}/a-123/model"
    spec = endpoint_spec(source="a-123")
    variant = spec.variants[0].model_copy(update={"model_path": path, "kind": "artifact"})
    put_endpoint(simulated_home.store, spec.model_copy(update={"variants": (variant,)}), host="one")
    simulated_home.tick()
    row, job = read(simulated_home)
    assert job is None and row.reason is not None and row.reason.startswith("There is no artifact a-123 any more")


def test_one_that_this_version_cannot_read_says_so(simulated_home: Home) -> None:
    put_endpoint(simulated_home.store, host="one")
    with simulated_home.store.session() as session:
        row = endpoint_rows.get(session, "chat")[0]
        row.spec = '{"kind": "endpoint"}'
        session.add(row)
    simulated_home.tick()
    row, job = read(simulated_home)
    assert job is None and row.reason is not None and "the endpoint chat" in row.reason


def test_a_removed_endpoint_is_not_known_and_its_name_is_free(simulated_home: Home, world: World) -> None:
    start_one(simulated_home)
    simulated_home.store.run(lambda session: endpoint_rows.remove(session, "chat", "ann"))
    with pytest.raises(NotFound, match="there is none"):
        read(simulated_home)
    simulated_home.tick()
    assert world.workers[-1].asked


def test_names_and_ports_are_taken_once(simulated_home: Home) -> None:
    put_endpoint(simulated_home.store)
    row = read(simulated_home)[0]
    for changes in ({"name": "other"}, {"port": 8799}):
        other = EndpointRow(**(row.model_dump() | changes))
        assert not simulated_home.store.run(lambda session, other=other: endpoint_rows.add(session, other))


@pytest.mark.parametrize(
    ("to_run", "given_up", "job_state", "phase", "state"),
    [
        (True, False, None, None, EndpointState.STARTING),
        (True, False, JobState.QUEUED, None, EndpointState.STARTING),
        (True, False, JobState.RUNNING, "fetch", EndpointState.STARTING),
        (True, False, JobState.RUNNING, "idle", EndpointState.IDLE),
        (True, False, JobState.LOST, "loaded", EndpointState.RESTARTING),
        (True, True, JobState.FAILED, "loaded", EndpointState.FAILED),
        (False, False, JobState.CANCELLING, "loaded", EndpointState.STOPPING),
        (False, False, JobState.CANCELLED, "loaded", EndpointState.STOPPED),
    ],
)
def test_the_state_is_read_from_row_and_job(
    to_run: bool, given_up: bool, job_state: JobState | None, phase: str | None, state: EndpointState
) -> None:
    assert find_state(to_run=to_run, given_up=given_up, job_state=job_state, phase=phase) is state


def test_pauses_grow_and_end() -> None:
    pauses = [restarts.decide_restart(crashes, 1.0).pause_s for crashes in range(6)]
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, None]
    assert restarts.decide_restart(5, restarts.STABLE_S) == (1, 0.0)
