"""The launcher of a cluster ends what nobody wants there any more: a keeper that is left holds its node for half an
hour."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.channel import Channel
from backend.domain.jobs.claims import Claim, Granted
from backend.domain.jobs.jobs import Handle, InstallSpec
from backend.launchers.cluster.client import ClusterUnreachable
from backend.launchers.cluster.follower import PLACED_S
from backend.launchers.cluster.launcher import ENDS, SWEEP_S, RayLauncher
from backend.settings import Settings
from tests.homes import eventually
from tests.simulated_cluster import SimulatedCluster

SPEC = InstallSpec(engine="serve").model_dump_json()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCluster]:
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "node"))
    simulated_cluster = SimulatedCluster()
    yield simulated_cluster
    for each in simulated_cluster.ever:
        each.close()


class Home:
    """A supervisor's launcher; its followers end with the test."""

    def __init__(self, folder: Path, cluster: SimulatedCluster) -> None:
        self.folder, self.launcher = folder, RayLauncher(Settings(home=folder, ray_address="h:1"), cluster)

    def started(self, job: str) -> Handle:
        channel = Channel(self.folder / "jobs" / job)
        channel.open(SPEC, Granted(claim=Claim(movable=True)))
        return self.launcher.start(job, channel)

    def start(self, job: str) -> Handle:
        """Once it is placed."""
        handle = self.started(job)
        eventually(f"{job} is placed", lambda: self.launcher.poll(handle).place is not None)
        return handle

    def crash(self) -> None:
        """As a supervisor that is killed: nobody follows its attempts any more."""
        for follower in self.launcher._followers.values():
            follower.stop()
        for thread in self.launcher._threads.values():
            thread.join()


def jobs_of(cluster: SimulatedCluster) -> set[str]:
    return {name.split(":")[1] for name in cluster.keepers}


def settled() -> None:
    """What the launcher does beside has ended."""
    for thread in [each for each in threading.enumerate() if each.name == ENDS]:
        thread.join(10)
        assert not thread.is_alive()


def test_a_returning_supervisor_ends_only_what_others_gave_up(tmp_path: Path, cluster: SimulatedCluster) -> None:
    before, other = Home(tmp_path / "home", cluster), Home(tmp_path / "other", cluster)
    before.start("j-kept")
    before.start("j-given-up")
    other.start("j-of-another-home")
    before.crash()
    after = Home(tmp_path / "home", cluster)
    after.launcher.sweep_others({"j-kept"})
    settled()
    assert jobs_of(cluster) == {"j-kept", "j-of-another-home"}
    after.start("j-new")
    assert "j-new" in jobs_of(cluster)
    after.crash()
    other.crash()


def test_what_it_started_since_is_not_ended(tmp_path: Path, cluster: SimulatedCluster) -> None:
    """The cluster answers late, when the supervisor has begun to give it jobs."""
    home = Home(tmp_path / "home", cluster)
    home.start("j-new")
    home.launcher.sweep_others(set())
    settled()
    assert jobs_of(cluster) == {"j-new"}
    home.crash()


def test_what_a_host_that_is_gone_has_there_ends_before_another_one_repeats_it(
    tmp_path: Path, cluster: SimulatedCluster
) -> None:
    removed, here = Home(tmp_path / "gone", cluster), Home(tmp_path / "here", cluster)
    handle = removed.start("j-1")
    removed.crash()
    eventually("its end", lambda: here.launcher.ended_elsewhere(SPEC, handle))
    assert cluster.keepers == {}


def test_a_cluster_that_does_not_answer_keeps_no_job_from_being_given_up(
    tmp_path: Path, cluster: SimulatedCluster
) -> None:
    removed, here = Home(tmp_path / "gone", cluster), Home(tmp_path / "here", cluster)
    handle = removed.start("j-1")
    removed.crash()
    cluster.broken = [ClusterUnreachable("The Ray cluster at h:1 does not answer.")] * 2
    eventually("nobody waits for it", lambda: here.launcher.ended_elsewhere(SPEC, handle))


def test_a_keeper_that_waits_for_a_node_is_not_waited_for_when_its_job_is_cancelled(
    tmp_path: Path, cluster: SimulatedCluster
) -> None:
    """Its supervisor has other jobs to look after."""
    cluster.full = True
    home = Home(tmp_path / "home", cluster)
    handle = home.started("j-1")
    eventually("it waits", lambda: "j-1" in jobs_of(cluster))
    home.launcher.sweep("j-1", handle)
    assert cluster.keepers == {}
    assert [limit_s for method, limit_s in cluster.calls if method == "close"] == [PLACED_S]


def test_a_keeper_on_a_node_has_time_to_end_its_worker(tmp_path: Path, cluster: SimulatedCluster) -> None:
    home = Home(tmp_path / "home", cluster)
    home.launcher.sweep("j-1", home.start("j-1"))
    assert cluster.keepers == {}
    assert [limit_s for method, limit_s in cluster.calls if method == "close"] == [SWEEP_S]
