"""Jobs as real processes: a supervisor, its workers, and what is left when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from backend.domain.errors import ArtifactCorrupt, NotNow, QualityFloorMissed
from backend.domain.jobs.jobs import JobState
from backend.domain.recipe import recipe
from backend.service import Workspace
from backend.service.jobs import artifacts, jobs, supervisors
from backend.service.jobs.jobs import JobView
from backend.service.plans import optimize
from backend.store import leases
from tests import homes
from tests.held_workers import UNENDING, hold, release
from tests.homes import (
    eventually,
    kill_supervisor,
    processes_of,
    until_ended,
    until_phase,
    until_state,
    worker_pid,
)
from tests.tiny import tiny_llama
from tests.worker_here import run_optimize

QUICK = recipe.read({"name": "ngram", "steps": [{"speculate": {"method": "ngram"}}]})
LONGER = recipe.read({"name": "w8a8", "steps": [{"quantize": {"method": "w8a8"}}]})


def submit(workspace: Workspace, chosen: recipe.Recipe, key: str | None = None) -> JobView:
    return optimize.submit(workspace, homes.prepare(workspace, "starter", chosen), submission=key)


def test_an_optimize_job_ends_in_a_verified_artifact_and_leaves_no_scratch(home: Workspace) -> None:
    job = submit(home, QUICK)
    supervisors.ensure_running(home)
    ended = until_ended(home, job.id)
    assert ended.state is JobState.SUCCEEDED, ended.error
    shown = artifacts.verify(home, str(ended.result["artifact"]))
    assert shown.manifest.recipe == QUICK and shown.job_id == job.id
    assert {file.path for file in shown.manifest.files} >= {"model/config.json", "model/model.safetensors"}
    eventually("its scratch is gone", lambda: not (home.settings.jobs / job.id / "1" / "work").exists())
    assert [seq for seq, _ in jobs.events(home, job.id)] == list(range(1, len(jobs.events(home, job.id)) + 1))
    messages = [event.message for event in jobs.timeline(home, job.id) if event.kind == "phase"]
    assert messages and jobs.logs(home, job.id).splitlines() == ["The worker has started.", *messages]
    logs = [home.settings.home / "supervisor.log", home.settings.jobs / job.id / "1" / "log.txt"]
    assert [stat.S_IMODE(log.stat().st_mode) for log in logs] == [0o600, 0o600]


def test_a_job_that_cannot_be_started_says_why_and_can_be_resumed(home: Workspace) -> None:
    job = submit(home, QUICK)
    in_the_way = home.settings.jobs / job.id
    in_the_way.parent.mkdir(parents=True, exist_ok=True)
    in_the_way.write_text("no folder")
    supervisors.ensure_running(home)
    ended = until_ended(home, job.id)
    assert ended.state is JobState.FAILED
    assert ended.error is not None and ended.error.startswith("The job was not started. ") and job.id in ended.error
    assert "check the folder and its permissions" in ended.error
    in_the_way.unlink()
    jobs.resume(home, job.id)
    supervisors.ensure_running(home)
    assert until_ended(home, job.id).state is JobState.SUCCEEDED


def test_the_same_submission_twice_is_one_job(home: Workspace) -> None:
    assert submit(home, QUICK, "click-1").id == submit(home, QUICK, "click-1").id
    assert len(jobs.listing(home)) == 1


def test_a_queued_job_is_cancelled_at_once_and_can_be_resumed(home: Workspace) -> None:
    job = submit(home, QUICK)
    assert jobs.cancel(home, job.id).state is JobState.CANCELLED
    with pytest.raises(NotNow):
        jobs.cancel(home, job.id)
    assert jobs.resume(home, job.id).attempt == 2
    supervisors.ensure_running(home)
    assert until_ended(home, job.id).state is JobState.SUCCEEDED


def test_the_queue_follows_move_to_front(home: Workspace) -> None:
    first, second = submit(home, QUICK), submit(home, QUICK)
    jobs.move_to_front(home, second.id)
    supervisors.ensure_running(home)
    ended = [until_ended(home, job.id) for job in (first, second)]
    assert ended[1].started_at is not None and ended[0].started_at is not None
    assert ended[1].started_at < ended[0].started_at


def test_a_killed_job_resumes_under_its_id_and_a_new_supervisor_finds_its_worker(
    home: Workspace,
) -> None:
    job = submit(home, LONGER)
    supervisors.ensure_running(home)
    os.kill(hold(home, job.id, "optimize"), signal.SIGKILL)
    ended = until_ended(home, job.id)
    assert ended.state is JobState.FAILED
    assert "signal 9" in (ended.error or "")
    eventually("no process left", lambda: processes_of(home) == [])
    assert artifacts.listing(home) == [] and not (home.settings.jobs / job.id / "1" / "work").exists()
    jobs.resume(home, job.id)
    supervisors.ensure_running(home)
    worker = hold(home, job.id, "optimize")
    kill_supervisor(home)
    assert worker_pid(home) == worker
    supervisors.ensure_running(home)
    release(worker)
    again = until_ended(home, job.id)
    assert (again.state, again.attempt) == (JobState.SUCCEEDED, 2), again.error
    artifacts.verify(home, str(again.result["artifact"]))


@pytest.mark.campaign
def test_a_job_whose_supervisor_and_worker_both_died_is_tried_again_by_itself(home: Workspace) -> None:
    job = submit(home, LONGER)
    supervisors.ensure_running(home)
    worker = hold(home, job.id, "optimize")
    kill_supervisor(home)
    os.kill(worker, signal.SIGKILL)
    eventually("no process left", lambda: processes_of(home) == [])
    supervisors.ensure_running(home)
    ended = until_ended(home, job.id)
    assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 2), ended.error
    messages = [event.message or "" for event in jobs.timeline(home, job.id)]
    assert "The worker is gone and nobody saw it end: tried again in 5 s." in messages
    (created,) = artifacts.listing(home)
    artifacts.verify(home, created.id)


def test_cancel_in_the_middle_leaves_nothing_behind(home: Workspace) -> None:
    job = submit(home, UNENDING)
    supervisors.ensure_running(home)
    until_phase(home, job.id, "recover")
    jobs.cancel(home, job.id)
    ended = until_state(home, job.id, JobState.CANCELLED)
    assert "half-written" in (ended.error or "") and ended.cause == home.settings.owner
    eventually("no process left", lambda: processes_of(home) == [])
    assert artifacts.listing(home) == [] and not (home.settings.jobs / job.id / "1" / "work").exists()
    assert jobs.events(home, job.id)


@pytest.mark.campaign
def test_a_supervisor_that_is_stopped_hands_over_what_runs(home: Workspace) -> None:
    job = submit(home, LONGER)
    supervisors.ensure_running(home)
    worker = hold(home, job.id, "optimize")
    assert supervisors.stop(home)
    left = jobs.show(home, job.id)
    assert (left.state, left.cancel_requested, worker_pid(home)) == (JobState.RUNNING, False, worker)
    assert not supervisors.is_alive(home) and "the next one takes it up" in (left.message or "")
    supervisors.ensure_running(home)
    release(worker)
    ended = until_ended(home, job.id)
    assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 1), ended.error


def test_two_homes_on_one_database_share_its_jobs_and_lose_none(home: Workspace, tmp_path: Path) -> None:
    url = f"sqlite:///{home.settings.home / homes.DATABASE}"
    other = homes.open_home(tmp_path / "other", database_url=url)
    queued = [submit(home, QUICK) for _ in range(3)]
    for each in (home, other):
        supervisors.start(each)
    for each in (home, other):
        eventually("its heartbeat", lambda each=each: supervisors.is_alive(each, own=True))
    for job in queued:
        ended = until_ended(home, job.id)
        assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 1), ended.error
    assert len({artifacts.verify(home, created.id).job_id for created in artifacts.listing(home)}) == 3
    assert all("The worker has started." in jobs.logs(other, job.id) for job in queued)
    assert supervisors.stop(other)
    assert processes_of(other) == []


@pytest.mark.campaign
def test_a_worker_that_hangs_is_ended_and_says_why(home: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHETSTONE_SILENT_S", "15")
    job, behind = submit(home, LONGER), submit(home, QUICK)
    supervisors.ensure_running(home)
    hold(home, job.id, "optimize")
    ended = until_ended(home, job.id)
    assert ended.state is JobState.FAILED and "no sign of life for 15 s" in (ended.error or "")
    assert until_ended(home, behind.id).state is JobState.SUCCEEDED


def test_a_damaged_channel_ends_its_job_alone(home: Workspace) -> None:
    job, behind = submit(home, LONGER), submit(home, QUICK)
    supervisors.ensure_running(home)
    worker = hold(home, job.id, "optimize")
    (home.settings.jobs / job.id / "1" / "result.json").write_text('{"outcome": "succ')
    os.kill(worker, signal.SIGKILL)
    ended = until_ended(home, job.id)
    assert ended.state is JobState.FAILED and "result.json is damaged" in (ended.error or "")
    assert until_ended(home, behind.id).state is JobState.SUCCEEDED


def test_a_flipped_byte_is_found(home: Workspace) -> None:
    job = submit(home, QUICK)
    supervisors.ensure_running(home)
    shown = artifacts.show(home, str(until_ended(home, job.id).result["artifact"]))
    weights = Path(shown.path) / "model" / "model.safetensors"
    weights.chmod(0o644)
    with weights.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(ArtifactCorrupt, match="model/model"):
        artifacts.verify(home, shown.id)


def test_a_quality_floor_fails_the_job(home: Workspace, tmp_path: Path) -> None:
    """In this process: test_a_damaged_channel_ends_its_job_alone and others have a worker that fails."""
    step = {"quantize": {"method": "awq", "group_size": 32}}
    floor = recipe.read({"name": "strict", "steps": [step], "limits": {"max_kl": 1e-9}})
    with pytest.raises(QualityFloorMissed, match="max_kl"):
        run_optimize(home, str(tiny_llama(tmp_path / "model")), floor, tmp_path / "job")
    assert artifacts.listing(home) == [] and not (tmp_path / "job" / "1" / "work" / "output" / "manifest.json").exists()


def test_ctrl_c_cancels_a_job_that_was_only_just_submitted_however_often_it_comes(
    home: Workspace, tmp_path: Path
) -> None:
    stored = tmp_path / "unending.yaml"
    stored.write_text(json.dumps(UNENDING.model_dump(mode="json", exclude_defaults=True)))
    environment = {**os.environ, "WHETSTONE_HOME": str(home.settings.home)}
    own = ["env", "--default-signal=INT"]  # where the tests themselves run in the background it is ignored
    command = [
        *own,
        sys.executable,
        "-m",
        "backend.cli.main",
        "optimize",
        "starter",
        "--recipe",
        str(stored),
        "--wait",
        "--json",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        eventually("the job", lambda: jobs.listing(home) != [])
        for _ in range(3):
            process.send_signal(signal.SIGINT)
        out, reported = process.communicate(timeout=120)
    assert process.returncode == 130 and out == ""
    assert "whetstone: Interrupted. " in reported and "Traceback" not in reported
    assert [job.state for job in jobs.listing(home)] == [JobState.CANCELLED]


def test_who_waits_for_a_job_waits_for_a_supervisor_that_is_paused_too(
    home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(home, QUICK)
    supervisors.ensure_running(home)
    monkeypatch.setattr(supervisors, "START_SECONDS", 2.0)
    monkeypatch.setattr(leases, "STALE_SECONDS", 1.0)
    eventually("only one supervisor", lambda: len(homes.supervisors_of(home)) == 1)
    (paused,) = homes.supervisors_of(home)
    paused.suspend()
    eventually("a heartbeat that is stale", lambda: not supervisors.is_alive(home))
    threading.Timer(4.0, paused.resume).start()
    assert jobs.wait(home, job.id).state is JobState.SUCCEEDED


def test_a_supervisor_that_is_just_ending_is_followed_by_the_next(home: Workspace) -> None:
    supervisors.start(home)
    eventually("only one supervisor", lambda: len(homes.supervisors_of(home)) == 1)
    (ending,) = homes.supervisors_of(home)
    ending.suspend()
    with home.store.read() as session:
        row = leases.latest_supervisor(session, socket.gethostname(), str(home.settings.home))
    assert row is not None
    home.store.run(lambda session: leases.hand_over(session, row))  # what it does last
    threading.Timer(1.0, ending.kill).start()
    supervisors.ensure_running(home)
    assert ending.pid not in {process.pid for process in homes.supervisors_of(home)}
    assert supervisors.is_alive(home, own=True)
