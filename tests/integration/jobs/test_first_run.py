"""The first run: the demo is queued once, goes on step by step, and ends as a whole. The studio is a real process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend.domain.errors import EngineMissing, NotNow
from backend.domain.jobs.jobs import InstallSpec, JobState
from backend.service import Workspace, open_workspace
from backend.service.jobs import jobs, supervisors
from backend.service.jobs.jobs import JobView
from backend.service.studio import engine_setup, first_run
from backend.settings import Settings
from backend.store import queue
from tests.homes import eventually, open_home, processes_of, until_state
from tests.integration.cli.calling import process
from tests.studio import artifact, claim, move, optimize_spec

pytestmark = pytest.mark.usefixtures("offline")


def finish(workspace: Workspace, job: JobView, state: JobState = JobState.SUCCEEDED) -> None:
    """Bring a queued step to its end by the queue's own statements, with an artifact where it made one."""
    artifact_id = artifact(workspace, job, optimize_spec(workspace).model)
    with workspace.store.session() as session:
        claim(session, job.id)
    with workspace.store.session() as session:
        move(session, job.id, JobState.RUNNING)
        move(session, job.id, state, result=json.dumps({"artifact": artifact_id}))


def steps(workspace: Workspace) -> list[str]:
    return [job.title for job in reversed(jobs.listing(workspace)) if job.title.startswith("Demo:")]


def test_the_first_start_queues_one_job_that_yields_and_says_so(home: Workspace) -> None:
    job = first_run.begin(home)
    assert job is not None and job.yields and job.title == "Demo: optimize starter with w8a8"
    assert first_run.begin(home) is None and first_run.advance(home) is None
    assert len(jobs.listing(home)) == 1
    status = first_run.status(home)
    assert status is not None and (status.number, status.steps, status.state) == (1, 4, "active")


def test_many_studios_at_once_queue_it_once(home: Workspace) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: first_run.begin(open_workspace(home.settings)), range(16)))
    assert len(jobs.listing(home)) == 1


def test_a_home_that_had_a_job_is_no_first_run(home: Workspace) -> None:
    jobs.cancel(home, jobs.submit(home, InstallSpec(engine="serve"), "mine").id)
    assert first_run.begin(home) is None and first_run.status(home) is None
    assert steps(home) == []


def test_each_step_follows_the_one_that_succeeded_whoever_asks(home: Workspace) -> None:
    for name in ("w8a8", "draft", "w8a8 + draft"):
        job = first_run.advance(open_workspace(home.settings))
        assert job is not None and job.title.endswith(name)
        finish(home, job)
    last = first_run.advance(home)
    assert last is not None and last.kind == "evaluate" and last.yields
    specification = jobs.specification(home, last.id)
    assert Path(specification["options"]["workload"]).is_file()
    variants = specification["variants"]
    assert [variant["kind"] for variant in variants] == ["model", "artifact", "artifact", "artifact"]
    finish(home, last)
    assert first_run.advance(home) is None
    status = first_run.status(home)
    assert status is not None and status.state == "done" and len(steps(home)) == 4


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.FAILED, JobState.LOST])
def test_a_step_that_did_not_succeed_ends_it_and_resumed_carries_it_on(home: Workspace, state: JobState) -> None:
    job = first_run.begin(home)
    assert job is not None
    finish(home, job, state)
    assert first_run.begin(home) is None
    status = first_run.status(home)
    assert status is not None and status.state == ("stopped" if state is JobState.CANCELLED else "failed")
    finish(home, jobs.resume(home, job.id))
    assert first_run.advance(home) is not None


def test_stopping_cancels_the_step_and_nothing_follows(home: Workspace) -> None:
    assert first_run.stop(home) is None
    first_run.begin(home)
    stopped = first_run.stop(home)
    assert stopped is not None and stopped.state is JobState.CANCELLED
    assert first_run.stop(home) is None and first_run.begin(home) is None
    assert len(jobs.listing(home)) == 1


def test_a_step_that_succeeds_although_it_was_asked_to_stop_is_the_last(home: Workspace) -> None:
    job = first_run.begin(home)
    assert job is not None
    finish(home, job)
    with home.store.session() as session:
        queue.get(session, job.id).cancel_requested = True
    assert first_run.advance(home) is None


def test_without_the_engine_the_measurement_waits_and_says_for_what(home: Workspace, tmp_path: Path) -> None:
    bare = open_workspace(Settings(home=home.settings.home, engines=tmp_path / "none"))
    for _ in range(3):
        job = first_run.advance(bare)
        assert job is not None
        finish(bare, job)
    with pytest.raises(EngineMissing, match="not installed"):
        first_run.advance(bare)
    status = first_run.status(bare)
    assert (
        status is not None
        and status.state == "waiting"
        and "whetstone engines install serve" in (status.obstacle or "")
    )
    assert first_run.advance(home) is not None


def test_missing_engines_are_queued_once_and_the_measurement_waits(home: Workspace, tmp_path: Path) -> None:
    bare = open_workspace(Settings(home=home.settings.home, engines=tmp_path / "none"))
    queued = engine_setup.begin(bare)
    assert [job.title for job in queued] == list(engine_setup.TITLES.values()) and all(job.yields for job in queued)
    assert all(jobs.specification(bare, job.id)["compiled"] is False for job in queued)
    assert engine_setup.begin(bare) == [] and first_run.is_due(bare), "installations are no first job"
    for _ in range(3):
        job = first_run.advance(bare)
        assert job is not None
        finish(bare, job)
    assert first_run.advance(bare) is None, "an engine is on its way"
    status = first_run.status(bare)
    assert status is not None and (status.awaited, status.obstacle) == (("llama.cpp", "vLLM"), None)
    for job in queued:
        finish(bare, job, JobState.FAILED)
    status = first_run.status(bare)
    assert status is not None and status.awaited == () and "is not installed" in (status.obstacle or "")
    assert list(engine_setup.find_failed(bare)) == ["serve", "llama-cpp"]
    assert len(engine_setup.begin(bare)) == 2, "the next start tries again"
    assert engine_setup.begin(home) == [], "they are installed"


def test_it_can_be_disabled_before_and_half_way(tmp_path: Path) -> None:
    off = open_workspace(Settings(home=tmp_path / "off", no_demo=True))
    assert first_run.begin(off) is None and jobs.listing(off) == []
    on = open_workspace(Settings(home=tmp_path / "off"))
    job = first_run.begin(on)
    assert job is not None
    assert first_run.begin(off) is None and jobs.show(on, job.id).state is JobState.CANCELLED


def test_a_person_begins_it_whatever_was_done_before_and_resumes_it(tmp_path: Path) -> None:
    home = open_workspace(Settings(home=tmp_path / "off", no_demo=True))
    jobs.cancel(home, jobs.submit(home, InstallSpec(engine="serve"), "mine").id)
    job = first_run.start(home)
    assert not job.yields and first_run.begin(home) is None and jobs.show(home, job.id).state is JobState.QUEUED
    with pytest.raises(NotNow, match="under way"):
        first_run.start(home)
    jobs.cancel(home, job.id)
    assert first_run.start(home).id == job.id
    finish(home, job)
    second = first_run.advance(home)
    assert second is not None and not second.yields


def test_made_ones_own_it_is_not_stopped_with_the_demo(home: Workspace) -> None:
    job = first_run.begin(home)
    assert job is not None
    assert not jobs.move_to_front(home, job.id).yields
    assert first_run.stop(home) is None and jobs.show(home, job.id).state is JobState.QUEUED


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def studio(home: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`whetstone up` as a process, stopped in order at the end."""
    command = [sys.executable, "-m", "backend.cli.main", "up", "--no-browser", "--port", str(free_port()), *arguments]
    up = subprocess.Popen(
        command, env={**os.environ, "WHETSTONE_HOME": str(home), **environment}, stderr=subprocess.PIPE, text=True
    )
    assert up.stderr is not None
    try:
        for line in up.stderr:
            if "Ctrl-C stops it" in line:
                break
        yield up
    finally:
        up.send_signal(signal.SIGINT)
        _, err = up.communicate(timeout=120)
        assert up.returncode == 0 and "Stopped." in err, err


def test_up_begins_the_demo_and_the_supervisor_runs_it(tmp_path: Path) -> None:
    with studio(tmp_path / "home"):
        home = open_home(tmp_path / "home")
        eventually("the first step", lambda: steps(home) == ["Demo: optimize starter with w8a8"])
        eventually("its start", lambda: jobs.listing(home)[0].state is JobState.RUNNING)


@pytest.mark.campaign
def test_up_goes_on_with_it_and_stopped_half_way_carries_it_over(home: Workspace) -> None:
    first = first_run.begin(home)
    assert first is not None
    finish(home, first)
    with studio(home.settings.home):
        eventually("the third step", lambda: len(steps(home)) == 3)
        third = until_state(home, jobs.listing(home)[0].id, JobState.RUNNING)
        assert jobs.listing(home)[1].state is JobState.SUCCEEDED
    assert not supervisors.is_alive(home) and processes_of(home) == []
    assert jobs.show(home, third.id).state is JobState.QUEUED
    with studio(home.settings.home):
        assert until_state(home, third.id, JobState.RUNNING).attempt == 2
        assert len(steps(home)) == 3


def test_up_queues_nothing_where_it_is_disabled(tmp_path: Path) -> None:
    with studio(tmp_path / "home", WHETSTONE_NO_DEMO="1"):
        home = open_home(tmp_path / "home")
        assert supervisors.is_alive(home)
    assert jobs.listing(home) == []


def test_a_headless_job_in_an_empty_home_brings_no_demo(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: n\nsteps:\n  - speculate: {method: ngram}\n")
    done = process(tmp_path / "home", "optimize", "starter", "--recipe", str(recipe), "--wait", "--json")
    assert done.returncode == 0, done.stderr
    assert [job.title for job in jobs.listing(open_home(tmp_path / "home"))] == ["Optimize starter with n"]


def test_up_demo_serves_without_touching_ones_home_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    with studio(tmp_path / "home", "--demo", TMPDIR=str(tmp_path / "temporary")):
        rows = list((tmp_path / "temporary").glob("whetstone-demonstration-*"))
        assert len(rows) == 1 and not (rows[0] / "supervisor.log").exists()
    assert not (tmp_path / "home").exists()
    assert list((tmp_path / "temporary").glob("whetstone-demonstration-*")) == []
