"""Jobs for which a launcher finds a machine: given in order, a few ahead, told of where they wait and run, tried
elsewhere."""

from __future__ import annotations

import pytest

from backend.domain.jobs.claims import Claim
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.jobs import Handle, JobState, WorkerState
from backend.store import history, queue
from backend.store.tables import JobRow
from backend.supervisor.attempt import MOST_WAITING
from tests.simulated_workers import CAPACITY, Home, SimulatedLauncher, World


class Placing(SimulatedLauncher):
    """Says of each worker, by its number, what a test has written; of others that they wait."""

    places = True

    def __init__(self, world: World, home: str) -> None:
        super().__init__(world, home)
        self.says: dict[int, WorkerState] = {}

    def poll(self, handle: Handle) -> WorkerState:
        state = super().poll(handle)
        return (
            self.says.get(handle.data["number"], WorkerState(alive=True, waiting="for a node"))
            if state.alive
            else state
        )


@pytest.fixture
def home_on_cluster(simulated_home: Home, world: World) -> Home:
    """Return a home whose launcher places workers on a cluster."""
    supervisor = simulated_home.supervisor
    supervisor.launcher = Placing(world, str(simulated_home.settings.home))
    supervisor._capacity = CAPACITY.model_copy(update={"cluster": MOST_WAITING})
    supervisor.row.capacity = supervisor._capacity.model_dump_json()
    return simulated_home


def submit(home: Home, name: str, claim: Claim) -> None:
    row = JobRow(
        id=name, kind="optimize", state=JobState.QUEUED, title=name, owner="t", terms="{}", claim=claim.text, spec="{}"
    )
    home.store.run(lambda session: queue.submit(session, row))


def says(home: Home) -> dict[int, WorkerState]:
    assert isinstance(home.supervisor.launcher, Placing)
    return home.supervisor.launcher.says


def started(world: World) -> list[str]:
    return [worker.job for worker in world.workers]


def row(home: Home, name: str) -> JobRow:
    with home.store.read() as session:
        return queue.get(session, name)


def messages_of(home: Home, name: str) -> str:
    with home.store.read() as session:
        return " ".join(event.message or "" for _, event in history.list_events(session, name))


ANY, WHOLE = Claim(movable=True), Claim(movable=True, whole=True)


def test_a_few_jobs_wait_in_the_cluster_and_the_rest_in_their_order_here(home_on_cluster: Home, world: World) -> None:
    for number in range(7):
        submit(home_on_cluster, f"j-{number}", ANY)
    for _ in range(12):
        home_on_cluster.tick()
    assert started(world) == ["j-0", "j-1", "j-2", "j-3"]
    says(home_on_cluster)[0] = WorkerState(alive=True, place="gpu-1 (10.0.0.1)")
    for _ in range(4):
        home_on_cluster.tick()
    assert started(world)[4:] == ["j-4"] and messages_of(home_on_cluster, "j-0").endswith(
        "Waits for a node. Runs on gpu-1 (10.0.0.1)."
    )
    assert Handle.model_validate_json(row(home_on_cluster, "j-0").handle or "").place == "gpu-1 (10.0.0.1)"


def test_only_jobs_of_this_machine_pass_a_measurement_that_waits_for_a_node(
    home_on_cluster: Home, world: World
) -> None:
    submit(home_on_cluster, "j-1", WHOLE)
    submit(home_on_cluster, "j-2", ANY)
    submit(home_on_cluster, "j-3", Claim(background=True, cores=0, gpus=()))
    for _ in range(6):
        home_on_cluster.tick()
    assert started(world) == ["j-1", "j-3"]
    says(home_on_cluster)[0] = WorkerState(alive=True, place="gpu-1 (10.0.0.1)")
    for _ in range(3):
        home_on_cluster.tick()
    assert started(world) == ["j-1", "j-3", "j-2"]


def test_a_job_that_waits_for_a_node_is_not_taken_for_hung(home_on_cluster: Home, world: World) -> None:
    home_on_cluster.supervisor.settings = home_on_cluster.settings.model_copy(update={"silent_s": 10.0, "idle_s": 10.0})
    submit(home_on_cluster, "j-1", ANY)
    for _ in range(12):
        home_on_cluster.time += 10.0
        home_on_cluster.tick()
    assert row(home_on_cluster, "j-1").state == JobState.RUNNING


@pytest.mark.parametrize("again", [True, False])
def test_a_job_of_a_lost_node_is_tried_again_and_one_no_node_can_run_is_not(
    home_on_cluster: Home, world: World, again: bool
) -> None:
    submit(home_on_cluster, "j-1", ANY)
    home_on_cluster.tick()
    says(home_on_cluster)[0] = WorkerState(alive=False, cause="The node gpu-1 (10.0.0.1) is gone", again=again)
    home_on_cluster.tick()
    job_row = row(home_on_cluster, "j-1")
    assert job_row.ending == (Ending.NODE if again else Ending.UNSTARTED)
    assert job_row.state == (JobState.QUEUED if again else JobState.FAILED)
    assert (
        "The node gpu-1 (10.0.0.1) is gone" in messages_of(home_on_cluster, "j-1")
        and ("tried again" in messages_of(home_on_cluster, "j-1")) is again
    )
