"""What a stopped job keeps to go on from, told and dropped: never under a job that may still use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from backend.cli.main import app
from backend.domain.errors import NotFound, NotNow
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.jobs import jobs
from tests import studio
from tests.homes import open_home


def keeping(home: Workspace, state: JobState) -> tuple[str, Path]:
    job = studio.optimize_job(home, state)
    folder = home.settings.jobs / job.id / "1" / "resume"
    folder.mkdir(parents=True)
    (folder / "part-00001.safetensors").write_bytes(b"1" * 81_920)
    return job.id, folder


def test_an_ended_job_drops_it_and_can_still_be_resumed(home: Workspace) -> None:
    job, folder = keeping(home, JobState.CANCELLED)
    assert jobs.checkpoint_bytes(home, job) == jobs.drop_checkpoints(home, job) == 81_920
    assert not folder.exists() and jobs.checkpoint_bytes(home, job) == jobs.drop_checkpoints(home, job) == 0
    assert jobs.resume(home, job).state is JobState.QUEUED


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_a_job_that_has_not_ended_keeps_it(tmp_path: Path, state: JobState) -> None:
    home = open_home(tmp_path / "home")  # in which nobody waits for the end of a job that nobody runs
    job, folder = keeping(home, state)
    with pytest.raises(NotNow, match="once it has ended"):
        jobs.drop_checkpoints(home, job)
    assert folder.exists()


def test_an_unknown_job_is_said_to_be(home: Workspace) -> None:
    with pytest.raises(NotFound):
        jobs.drop_checkpoints(home, "j-nothing")


def test_the_command_line_tells_and_drops_it(home: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = keeping(home, JobState.FAILED)
    monkeypatch.setenv("WHETSTONE_HOME", str(home.settings.home))

    def output_of(*arguments: str) -> str:
        return CliRunner().invoke(app, ["jobs", *arguments], catch_exceptions=False).stdout

    assert "Checkpoints: 0.0819 MB" in output_of("show", job)
    assert json.loads(output_of("drop", job, "--json")) == {"id": job, "freed_bytes": 81_920}
    assert "It had no checkpoints" in output_of("drop", job)
