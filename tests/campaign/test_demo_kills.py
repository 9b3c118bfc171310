"""The demo under fire: Ctrl-C, kill -9 of a worker with servers up, kill -9 of the supervisor. Nothing may be left
behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from backend import processes
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts, jobs, supervisors
from tests.held_workers import hold, release, release_once_cancelled
from tests.homes import eventually, kill_supervisor, processes_of, until_ended, until_phase, worker_pid
from tests.live_processes import working_folder

pytestmark = [pytest.mark.campaign, pytest.mark.vllm]


@pytest.fixture
def demo(home: Workspace) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "WHETSTONE_HOME": str(home.settings.home)}
    command = ["env", "--default-signal=INT", sys.executable, "-m", "backend.cli.main", "demo", "--starter", "--json"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def only_job(home: Workspace) -> str:
    eventually("the demo's first job", lambda: len(jobs.listing(home)) == 1)
    return jobs.listing(home)[0].id


def test_ctrl_c_cancels_the_demo_with_130_and_leaves_nothing(home: Workspace, demo: subprocess.Popen[str]) -> None:
    job = only_job(home)
    worker = hold(home, job, "optimize")
    demo.send_signal(signal.SIGINT)
    release_once_cancelled(worker)
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == 130 and out == "" and "cancelled" in err
    assert jobs.show(home, job).state is JobState.CANCELLED
    assert processes_of(home) == [] and artifacts.listing(home) == []


def test_the_demo_survives_kill_9_of_its_supervisor(home: Workspace, demo: subprocess.Popen[str]) -> None:
    job = only_job(home)
    worker = hold(home, job, "optimize")
    kill_supervisor(home)
    release(worker)
    assert until_ended(home, job).state is JobState.SUCCEEDED
    eventually("the second job", lambda: len(jobs.listing(home)) >= 2)
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=180)
    assert demo.returncode == 130
    for artifact in artifacts.listing(home):
        artifacts.verify(home, artifact.id)


def test_kill_9_of_a_worker_takes_its_servers_with_it(home: Workspace) -> None:
    options = evaluations.read_options(concurrency=(1,), repeats=1, requests=900, quality=False)
    job = evaluations.submit(home, evaluations.prepare(home, ["starter"], options))
    supervisors.ensure_running(home)
    until_phase(home, job.id, "measure")
    inside = [working_folder(process) for process in processes.list_tree(worker_pid(home))]
    folders = [folder for folder in inside if folder is not None and folder.name.startswith("whetstone-")]
    assert len(folders) >= 3, "keeper, API server and engine core"
    os.kill(worker_pid(home), signal.SIGKILL)
    ended = until_ended(home, job.id)
    assert ended.state is JobState.FAILED and "signal 9" in (ended.error or "")
    eventually("no process left", lambda: processes_of(home) == [])
    assert not any(folder.exists() for folder in folders)
    assert evaluations.listing(home) == []


def test_cancel_while_a_server_loads_leaves_nothing(home: Workspace) -> None:
    options = evaluations.read_options(concurrency=(1,), repeats=1, requests=8, quality=False)
    job = evaluations.submit(home, evaluations.prepare(home, ["starter"], options))
    supervisors.ensure_running(home)
    eventually("the server's first line", lambda: any((home.settings.jobs / job.id).glob("*/server-*.log")))
    jobs.cancel(home, job.id)
    assert until_ended(home, job.id).state is JobState.CANCELLED
    eventually("no process left", lambda: processes_of(home) == [])
