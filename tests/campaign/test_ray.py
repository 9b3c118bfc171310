"""Jobs on a real Ray cluster of three nodes on this machine, of which nodes and the head are killed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.domain.jobs.jobs import Event, JobState
from backend.domain.machine.hardware_lines import hardware_line
from backend.domain.recipe import recipe
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts, jobs, supervisors
from backend.service.machines import doctor
from backend.service.plans import optimize
from tests.held_workers import UNENDING
from tests.homes import eventually, kill_supervisor, open_home, prepare, processes_of, until_ended, until_phase
from tests.integration.cli.calling import process
from tests.ray_cluster import MARK, SECRET, RayCluster
from tests.tiny import tiny_llama

pytestmark = [pytest.mark.campaign, pytest.mark.process, pytest.mark.ray]
LAYERS = 16
AWQ = recipe.read(
    {"name": "awq", "steps": [{"quantize": {"method": "awq", "group_size": 32, "samples": 16, "length": 256}}]}
)
WORTH = "s3cr3t-of-the-studio"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_llama(tmp_path_factory.mktemp("model") / "llama", layers=LAYERS))


@pytest.fixture(scope="module")
def expected(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sha256 of the weights that a job makes on this machine, without a cluster."""
    os.environ["OMP_NUM_THREADS"] = "1"
    home = open_home(tmp_path_factory.mktemp("local") / "home")
    job = optimize.submit(home, prepare(home, model, AWQ))
    supervisors.ensure_running(home)
    assert until_ended(home, job.id).state is JobState.SUCCEEDED
    jobs.cancel_all_and_stop(home)
    return weights(home)


@pytest.fixture(scope="module")
def three() -> Iterator[RayCluster]:
    cluster = RayCluster()
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(three: RayCluster) -> RayCluster:
    """With a head and two nodes, whatever the test before this one killed."""
    three.restore()
    return three


@pytest.fixture
def studio(cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A home whose supervisor sends what computes to the cluster, with a secret in its environment."""
    monkeypatch.setenv("WHETSTONE_RAY_ADDRESS", cluster.address)
    monkeypatch.setenv(SECRET, WORTH)
    workspace = open_home(tmp_path / "home", ray_address=cluster.address)
    yield workspace
    jobs.cancel_all_and_stop(workspace)
    eventually("no process of the home", lambda: processes_of(workspace) == [], 30)


def weights(home: Workspace) -> str:
    """Of the only artifact, verified."""
    (artifact,) = artifacts.listing(home)
    artifacts.verify(home, artifact.id)
    manifest = json.loads((Path(artifact.path) / "manifest.json").read_text())
    return next(file["sha256"] for file in manifest["files"] if file["path"].endswith("model.safetensors"))


def submit(home: Workspace, model: str, chosen: recipe.Recipe = AWQ) -> str:
    job = optimize.submit(home, prepare(home, model, chosen)).id
    supervisors.start(home)
    return job


def node_of(home: Workspace, job: str) -> int:
    """The last number of the address of the node that its worker runs on."""
    eventually("a node", lambda: "(127.0.0." in (jobs.show(home, job).place or ""), 120)
    return int((jobs.show(home, job).place or "").rstrip(")").rpartition(".")[2])


def until_layer(home: Workspace, job: str, layer: int) -> None:
    def there() -> bool:
        event = jobs.latest_progress(home, job)
        assert not jobs.show(home, job).ended, jobs.show(home, job).error
        return event is not None and event.phase == "optimize" and (event.done or 0) >= layer

    eventually(f"layer {layer}", there, 120)


def last(home: Workspace, job: str) -> Event:
    return list(jobs.events(home, job))[-1][1]


def resume_parts(home: Workspace, job: str) -> list[Path]:
    return list((home.settings.jobs / job).glob("*/resume/part-*"))


def test_a_job_runs_on_a_node_to_the_same_bytes_and_no_secret_leaves(
    studio: Workspace, cluster: RayCluster, model: str, expected: str
) -> None:
    (reported,) = [finding for finding in doctor.examine(studio) if finding.subject == "Ray cluster"]
    assert reported.level == "ok" and f"{cluster.address}: 3 nodes, 2 of them take jobs" in reported.finding
    job = submit(studio, model)
    late: list[float] = []
    observed = 0
    while not jobs.show(studio, job).ended:
        for number, event in jobs.events(studio, job, after=observed):
            late.append(time.time() - event.at.timestamp())
            observed = number
        time.sleep(0.1)
    result = jobs.show(studio, job)
    assert result.state is JobState.SUCCEEDED, result.error
    assert node_of(studio, job) in cluster.numbers and weights(studio) == expected
    assert len(late) > LAYERS and sorted(late)[int(0.9 * len(late))] < 3.0, (
        "seconds from event to studio, on a busy machine"
    )
    assert "The worker has started." in jobs.logs(studio, job)
    assert f"Ran on {result.place}." in process(studio.settings.home, "jobs", "show", job).stdout
    files = [path for top in (cluster.folder, studio.settings.jobs) for path in top.rglob("*") if path.is_file()]
    assert not [path for path in files if WORTH.encode() in path.read_bytes()], (
        "a log or Ray's own records hold a secret"
    )
    assert not list(cluster.folder.glob("node-*/spool/*/*/*")), "nothing stays on a node"


def test_a_cancel_ends_the_worker_on_its_node_and_leaves_nothing(
    studio: Workspace, cluster: RayCluster, model: str
) -> None:
    job = submit(studio, model, UNENDING)
    node_of(studio, job)
    until_phase(studio, job, "recover")
    assert processes_of(studio)
    jobs.cancel(studio, job)
    moment = time.monotonic()
    assert until_ended(studio, job).state is JobState.CANCELLED and time.monotonic() - moment < 120
    eventually("the worker's end", lambda: processes_of(studio) == [])
    assert not list(cluster.folder.glob("node-*/spool/*/*/*")) and artifacts.listing(studio) == []


@pytest.mark.vllm
def test_an_evaluation_runs_whole_on_a_node_that_it_has_to_itself(
    studio: Workspace, cluster: RayCluster, model: str
) -> None:
    """A real vLLM server on the node; of two other jobs one has the other node meanwhile, and one waits."""
    options = evaluations.read_options(concurrency=(1,), repeats=1, requests=8, max_tokens=16, quality=False)
    measured = evaluations.submit(studio, evaluations.prepare(studio, ["starter"], options)).id
    supervisors.start(studio)
    node = node_of(studio, measured)
    others = [submit(studio, model) for _ in range(2)]
    eventually(
        "one has the other node",
        lambda: any("(127.0.0." in (jobs.show(studio, each).place or "") for each in others),
        120,
    )
    assert not jobs.show(studio, measured).ended, "both were submitted while it ran"
    job = until_ended(studio, measured)
    assert job.state is JobState.SUCCEEDED and job.attempt == 1, job.error
    (shown,) = evaluations.listing(studio)
    document = shown.document
    assert document.hardware["node"] == job.place and node_of(studio, measured) == node
    assert hardware_line(document.hardware).endswith(f"node {job.place}")
    assert f"node {job.place}" in evaluations.report_file(studio, shown.id).decode()
    (level,) = document.variants[0].levels
    assert level.invocations == 8 and level.invocation_errors == 0
    ended = last(studio, measured).at
    for other in others:
        assert until_ended(studio, other).state is JobState.SUCCEEDED
        (began,) = [event.at for _, event in jobs.events(studio, other) if (event.message or "").startswith("Runs on ")]
        assert node_of(studio, other) != node or began > ended, "nothing ran on its node before it had ended"
    assert processes_of(studio) == [] and not list(cluster.folder.glob("node-*/spool/*/*/*")), "nothing stays on a node"


def test_doctor_says_in_a_sentence_that_no_cluster_answers(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home", ray_address="127.0.0.1:1")
    (reported,) = [finding for finding in doctor.examine(home) if finding.subject == "Ray cluster"]
    assert reported.level == "problem" and reported.finding.startswith(
        "The Ray cluster at 127.0.0.1:1 does not answer ("
    )
    assert reported.finding.count("\n") == 0 and MARK not in reported.finding


def test_the_node_is_killed_and_the_job_ends_elsewhere_from_its_last_layer(
    studio: Workspace, cluster: RayCluster, model: str, expected: str
) -> None:
    job = submit(studio, model)
    first = node_of(studio, job)
    until_layer(studio, job, 4)
    eventually("layers that are kept here", lambda: len(resume_parts(studio, job)) > 3, 60)
    cluster.kill(first)
    assert until_ended(studio, job).state is JobState.SUCCEEDED
    result = jobs.show(studio, job)
    assert result.attempt == 2 and node_of(studio, job) != first and weights(studio) == expected
    messages = [event.message or "" for _, event in jobs.events(studio, job)]
    assert any(f"(127.0.0.{first})" in line and "tried again" in line for line in messages), "the cause is named"
    assert any("were done before: going on with layer" in line for line in messages)


def test_ray_65025_the_head_is_killed_and_a_live_job_is_not_marked_failed(
    studio: Workspace, cluster: RayCluster, model: str, expected: str
) -> None:
    job = submit(studio, model)
    node_of(studio, job)
    until_layer(studio, job, 2)
    cluster.kill(0)
    time.sleep(2.0)
    cluster.start_head()
    cluster.start_nodes()
    assert until_ended(studio, job).state is JobState.SUCCEEDED
    assert weights(studio) == expected
    states = [event.data.get("state") for _, event in jobs.events(studio, job) if event.kind == "state"]
    assert not {"failed", "lost"} & set(states)


def test_ray_65608_a_succeeded_job_stays_so_when_head_and_supervisor_are_new(
    studio: Workspace, cluster: RayCluster, model: str, expected: str
) -> None:
    job = submit(studio, model)
    until_layer(studio, job, LAYERS // 2)
    kill_supervisor(studio)
    eventually("the result on the node", lambda: bool(list(cluster.folder.glob("node-*/spool/*/*/*/result.json"))), 120)
    supervisors.start(studio)
    assert until_ended(studio, job).state is JobState.SUCCEEDED and jobs.show(studio, job).attempt == 1
    cluster.kill(0)
    cluster.start_head()
    time.sleep(3.0)
    assert jobs.show(studio, job).state is JobState.SUCCEEDED and weights(studio) == expected
