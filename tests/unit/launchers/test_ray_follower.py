"""An attempt on a cluster as its follower sees it: what Ray says is a hint, what lies in the channel counts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend import files, launchers
from backend.channel import COMING, RESUME, Channel, ChannelDamaged, JobChannel
from backend.channel_copy import ChannelCopy
from backend.domain.jobs.claims import Claim, Granted
from backend.domain.jobs.jobs import Event, InstallSpec, Specification
from backend.launchers.cluster.client import ActorGone, ClusterUnreachable
from backend.launchers.cluster.follower import AWAY_S, GONE_S, AttemptFollower, Setup
from backend.launchers.cluster.inside import keeper
from backend.launchers.cluster.requests import NOBODY
from backend.settings import CHECKOUT, Settings
from tests.homes import eventually
from tests.simulated_cluster import Idle, SimulatedCluster

SPEC = InstallSpec(engine="serve").model_dump_json()
SETUP = Setup(str(CHECKOUT), "/usr/bin/env", keeper.digest(CHECKOUT), "/home/studio", {})
NAME = "0123456789ab:j-1:{}"


class Attempt:
    """One, with a clock of its own."""

    def __init__(self, folder: Path, cluster: SimulatedCluster, number: int = 1, setup: Setup = SETUP) -> None:
        self.cluster, self.time, self.name = cluster, 0.0, NAME.format(number)
        self.channel = Channel(folder / "j-1", number)
        self.channel.open(SPEC, Granted(claim=Claim(movable=True)))
        self.follower = AttemptFollower(cluster, self.name, self.channel, setup, now=lambda: self.time)

    @property
    def keeper(self) -> Idle:
        return self.cluster.keepers[self.name]

    def step(self, count: int = 1, seconds: float = 0.5) -> None:
        for _ in range(count):
            self.time += seconds
            self.follower.step()

    def events(self) -> list[str | None]:
        return [event.message for _, result in self.channel.segments(0) for event in result]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCluster]:
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "node"))
    monkeypatch.setattr(keeper, "SOON_S", 60.0)  # a file that is being copied beside other tests is waited for
    simulated_cluster = SimulatedCluster()
    yield simulated_cluster
    for each in simulated_cluster.ever:
        each.close()


@pytest.fixture
def attempt(tmp_path: Path, cluster: SimulatedCluster) -> Attempt:
    return Attempt(tmp_path, cluster)


def end(worker: JobChannel, outcome: str = "succeeded") -> None:
    worker.output.mkdir(parents=True, exist_ok=True)
    (worker.output / "weights").write_bytes(bytes(range(256)))
    worker.result({"outcome": outcome, "document": {"artifact": "a-1"}})


def test_what_a_worker_says_keeps_and_makes_comes_here_and_its_result_last(attempt: Attempt) -> None:
    attempt.step()
    assert attempt.follower.state.place == "node-1 (10.0.0.1)" and attempt.follower.state.waiting is None
    keeper_, worker = attempt.keeper, attempt.keeper.worker
    assert worker.spec()["engine"] == "serve"
    worker.emit(Event(kind="note", message="one"))
    (keeper_.folder / "log.txt").write_text("printed\n")
    attempt.step()
    assert attempt.events() == ["one"] and attempt.channel.log() == "printed\n"
    attempt.step()
    assert attempt.events() == ["one"] and not list((keeper_.folder / "events").iterdir()), (
        "here, and not there any more"
    )
    end(worker)
    attempt.step()
    assert attempt.follower.state.alive and attempt.channel.result() is None, "not before its keeper has seen it end"
    keeper_.code = 0
    attempt.step()
    assert not attempt.follower.state.alive and attempt.follower.state.code == 0
    assert (attempt.channel.output / "weights").read_bytes() == bytes(range(256))
    assert attempt.channel.result().document == {"artifact": "a-1"}  # type: ignore[union-attr]


@pytest.mark.parametrize("layers", range(1, 8))
def test_what_it_kept_at_one_moment_goes_with_the_job_to_the_next_node(
    tmp_path: Path, attempt: Attempt, cluster: SimulatedCluster, layers: int
) -> None:
    """A state names the file beside it: of both those of one moment come along, though both change between any two
    looks."""
    attempt.step()
    resumed = attempt.keeper.worker.resume()
    resumed.mkdir()
    for layer in range(1, layers + 1):
        files.write(resumed / f"hidden-{layer % 2}", f"of layer {layer}")
        attempt.step()
        files.write(resumed / "state", str(layer))
    (resumed / "mapped-0").write_text("changed in place")
    attempt.step()
    files.write(resumed / f"hidden-{(layers + 1) % 2}", "which no look saw")
    cluster.forgets()
    attempt.step(10, GONE_S / 4)
    assert not attempt.follower.state.alive
    second = Attempt(tmp_path, cluster, 2)
    second.step()
    there = second.keeper.worker.resume()
    state = (there / "state").read_text()
    assert int(state) >= layers - 1 and (there / f"hidden-{int(state) % 2}").read_text() == f"of layer {state}"
    assert not (there / "mapped-0").exists()


def test_what_it_keeps_no_more_goes_here_too(attempt: Attempt) -> None:
    attempt.step()
    resumed = attempt.keeper.worker.resume()
    resumed.mkdir()
    files.write(resumed / "part-1", "layer 1")
    attempt.step(3)
    assert (Path(attempt.channel.address) / RESUME / "part-1").exists()
    shutil.rmtree(resumed)
    attempt.step(3)
    assert not (Path(attempt.channel.address) / RESUME).exists() and attempt.follower.state.alive


def test_what_it_kept_last_comes_before_its_end_is_told(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it ended while what it kept before was half here."""
    monkeypatch.setattr("backend.channel_copy.CARRY_S", 0.0)
    attempt.step()
    resumed = attempt.keeper.worker.resume()
    resumed.mkdir()
    files.write(resumed / "part-1", b"1" * 9_000_000)
    attempt.step(2)
    assert not (Path(attempt.channel.address) / RESUME).exists() and (Path(attempt.channel.address) / COMING).is_dir()
    files.write(resumed / "part-1", b"2" * 9_000_000)
    attempt.keeper.code = 1
    attempt.step(8)
    assert attempt.follower.state.code == 1
    assert (Path(attempt.channel.address) / RESUME / "part-1").read_bytes() == b"2" * 9_000_000
    assert not (Path(attempt.channel.address) / COMING).exists()


def test_a_job_waits_and_says_for_what(attempt: Attempt, cluster: SimulatedCluster) -> None:
    cluster.broken = [ClusterUnreachable("The Ray cluster at h:1 does not answer (ConnectionError).")]
    attempt.step()
    assert (
        attempt.follower.state.waiting
        == "for the cluster to answer: The Ray cluster at h:1 does not answer (ConnectionError)"
    )
    cluster.full = True
    attempt.step(20, AWAY_S)
    assert (
        attempt.follower.state.alive
        and attempt.follower.state.waiting == "for a node with 4 cores: those that have it are taken"
    )
    cluster.nodes = [cluster.nodes[0]._replace(resources={"CPU": 8.0})]
    attempt.step()
    assert attempt.follower.state.waiting == f"for a node with 4 cores: {NOBODY}"
    attempt.follower.cancel(force=False)
    attempt.step()
    assert not attempt.follower.state.alive, "cancelled although no node ever took it"


def test_ray_65608_a_job_that_ended_before_the_head_was_replaced_stays_ended(
    attempt: Attempt, cluster: SimulatedCluster
) -> None:
    attempt.step()
    end(attempt.keeper.worker)
    attempt.keeper.code = 0
    attempt.step()
    cluster.forgets()
    attempt.step(0)
    assert attempt.follower.state.code == 0 and attempt.channel.result().outcome == "succeeded"  # type: ignore[union-attr]


def test_ray_65608_one_whose_result_was_not_here_yet_may_run_again(attempt: Attempt, cluster: SimulatedCluster) -> None:
    attempt.step()
    end(attempt.keeper.worker)
    cluster.forgets()
    attempt.step(10, GONE_S / 4)
    state = attempt.follower.state
    assert not state.alive and state.code is None and state.again and "node-1 (10.0.0.1) is gone" in (state.cause or "")


@pytest.mark.parametrize("error", [ClusterUnreachable("RPC error: UNAVAILABLE"), ActorGone("The actor died.")])
def test_ray_65025_a_live_job_outlives_answers_that_fail(
    attempt: Attempt, cluster: SimulatedCluster, error: Exception
) -> None:
    attempt.step()
    for _ in range(5):
        cluster.broken = [error] * 2
        attempt.step(4)
        assert attempt.follower.state.alive and attempt.follower.state.waiting is None
    attempt.keeper.worker.emit(Event(kind="note", message="still here"))
    attempt.step(2)
    assert attempt.events() == ["still here"]


def test_a_worker_of_which_nothing_is_heard_for_long_is_given_up(attempt: Attempt, cluster: SimulatedCluster) -> None:
    attempt.step()
    cluster.broken = [ClusterUnreachable("RPC error: UNAVAILABLE")] * 1000
    attempt.step(10, AWAY_S / 20)
    assert attempt.follower.state.alive
    attempt.step(12, AWAY_S / 20)
    assert not attempt.follower.state.alive and attempt.follower.state.again
    assert "Nothing was heard of the worker on node-1 (10.0.0.1)" in (attempt.follower.state.cause or "")


def test_a_node_with_another_version_is_refused_with_what_to_do(tmp_path: Path, cluster: SimulatedCluster) -> None:
    attempt = Attempt(tmp_path, cluster, setup=SETUP._replace(sources="other"))
    attempt.step()
    state = attempt.follower.state
    assert not state.alive and not state.again and not attempt.keeper.begun
    assert state.cause == (
        f"The node node-1 (10.0.0.1) has another version of Whetstone at {CHECKOUT}: bring it to that of the studio"
    )


def test_a_node_without_the_models_files_is_sent_them(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_text("numbers")
    monkeypatch.setattr(Specification, "paths", {str(model)})
    monkeypatch.setattr(Idle, "missing", (str(model),))
    attempt.step()
    assert attempt.keeper.sent == {str(model / "weights"): b"numbers"}


def test_files_of_another_time_count_by_their_content(attempt: Attempt, tmp_path: Path) -> None:
    attempt.step()
    path = tmp_path / "weights"
    path.write_text("numbers")
    assert attempt.keeper.same({str(path): (keeper.sha256(path), 10**18)}) and path.stat().st_mtime_ns == 10**18
    assert not attempt.keeper.same({str(path): ("0" * 64, 10**17)}) and path.stat().st_mtime_ns == 10**18


def test_a_cancel_reaches_the_worker_although_the_first_try_does_not(
    attempt: Attempt, cluster: SimulatedCluster
) -> None:
    attempt.step()
    attempt.follower.cancel(force=False)
    cluster.broken = [ClusterUnreachable("RPC error")]
    attempt.step()
    assert attempt.keeper.asked is None
    attempt.step()
    assert attempt.keeper.asked is False


def test_the_next_supervisor_takes_up_what_was_begun(
    tmp_path: Path, attempt: Attempt, cluster: SimulatedCluster
) -> None:
    attempt.step(2)
    worker = attempt.keeper.worker
    worker.emit(Event(kind="note", message="one"))
    attempt.step()
    later = AttemptFollower(cluster, attempt.name, Channel(tmp_path / "j-1", 1), SETUP, now=lambda: attempt.time)
    worker.emit(Event(kind="note", message="two"))
    later.step()
    assert (
        attempt.events() == ["one", "two"] and len(cluster.requests) == 1 and later.state.place == "node-1 (10.0.0.1)"
    )


@pytest.mark.parametrize("name", ["../2/result.json", "/etc/cron.d/job", "resume/../../spec.json"])
def test_a_node_cannot_name_a_file_outside_of_the_channel(attempt: Attempt, name: str) -> None:
    attempt.step()
    with pytest.raises(ChannelDamaged):
        ChannelCopy(attempt.channel, attempt.keeper).fetch([(name, 3, 1)], ended=True)


def test_a_keeper_that_nobody_asks_any_more_ends_and_a_dead_ones_folder_goes(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(keeper.os, "_exit", ended.append)
    left = Idle("key", "j-0", 1, 0.1)
    eventually("its end", lambda: bool(ended), 60)
    assert not left.folder.exists()
    folder = tmp_path / "node" / "spool" / "key" / "j-9" / "1"
    folder.mkdir(parents=True)
    (folder / keeper.LOCK_FILE).touch()
    keeper.os.utime(folder / keeper.LOCK_FILE, (1.0, 1.0))
    Idle("key", "j-1", 1, math.inf).close()
    assert not folder.exists()


def test_with_a_cluster_jobs_are_placed_there_and_take_nothing_of_the_studios_host(tmp_path: Path) -> None:
    assert launchers.choose_launcher(Settings(home=tmp_path, ray_address="127.0.0.1:1")).places
    assert not launchers.choose_launcher(Settings(home=tmp_path)).places


def test_a_missing_environment_is_reported_and_a_job_waiting_for_it_cancels(tmp_path: Path) -> None:
    cluster = launchers.cluster.launcher.make_client(
        Settings(home=tmp_path, engines=tmp_path / "none", ray_address="127.0.0.1:1")
    )
    channel = Channel(tmp_path / "j-1", 1)
    channel.open(SPEC, Granted(claim=Claim(movable=True)))
    follower = AttemptFollower(cluster, NAME.format(1), channel, SETUP)
    follower.step()
    assert follower.state.alive and "install it with `whetstone engines install ray`" in str(follower.state.waiting)
    follower.cancel(force=False)
    follower.step()
    assert not follower.state.alive and "cancelled" in str(follower.state.cause)
    launchers.cluster.launcher.RayLauncher(Settings(home=tmp_path), cluster).sweep("j-1", None)


@pytest.mark.parametrize("name", ["spec.json", "granted.json"])
def test_a_request_damaged_before_a_node_has_it_ends_the_job_with_a_sentence(attempt: Attempt, name: str) -> None:
    (Path(attempt.channel.address) / name).write_bytes(b'{"kind": ')
    attempt.step()
    state = attempt.follower.state
    assert not state.alive and not state.again and f"{name} is damaged" in (state.cause or "")


@pytest.mark.parametrize(
    "answer", [None, [], {"begun": True}, {"begun": True, "code": None, "files": [["a"]], "frozen": None}, "x"]
)
def test_an_answer_of_another_form_ends_the_attempt_in_a_sentence(
    tmp_path: Path, cluster: SimulatedCluster, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    attempt = Attempt(tmp_path, cluster)
    attempt.step(3)
    assert attempt.follower.state.alive
    call = cluster.call
    monkeypatch.setattr(
        cluster,
        "call",
        lambda name, method, *rest, **options: answer if method == "inspect" else call(name, method, *rest, **options),
    )
    attempt.step(2)
    state = attempt.follower.state
    assert not state.alive and not state.again and "does not answer as Whetstone does there" in str(state.cause)
