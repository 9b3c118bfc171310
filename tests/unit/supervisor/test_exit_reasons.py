"""How an exit that left no result is called."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from backend.domain.jobs.endings import POLICIES, Ending
from backend.domain.jobs.jobs import RESULT_UNWRITTEN, JobState
from backend.store import queue
from backend.store.tables import JobRow
from backend.supervisor.finish import exit_reason
from tests.simulated_workers import Home, World


def test_a_worker_that_was_told_to_end_before_it_could_say_so_is_tried_again(tmp_path: Path) -> None:
    """As a node does that its cluster has given up: seed 5015 of the campaign on Ray."""
    ending, reported = exit_reason(-signal.SIGTERM, tmp_path)
    assert ending is Ending.STOPPED and ending in POLICIES and "stopped from outside" in reported


def test_a_crash_that_was_seen_is_not_tried_again(tmp_path: Path) -> None:
    for code in (-signal.SIGKILL, -signal.SIGSEGV, 1):
        ending, reported = exit_reason(code, tmp_path)
        assert ending is Ending.CRASHED and ending not in POLICIES and "resume the job" in reported


@pytest.mark.parametrize("code", [1, -signal.SIGKILL, -signal.SIGTERM, RESULT_UNWRITTEN])
def test_a_worker_whose_folder_was_removed_is_not_told_to_see_a_log_that_is_gone(tmp_path: Path, code: int) -> None:
    removed = tmp_path / "j-1" / "1"
    ending, reported = exit_reason(code, tmp_path, str(removed))
    assert (
        ending is Ending.DAMAGED
        and reported.startswith(f"The job's folder {removed} was removed while it ran")
        and "see the" not in reported
    )
    removed.mkdir(parents=True)
    assert "was removed" not in exit_reason(code, tmp_path, str(removed))[1]


def test_a_folder_that_is_removed_under_a_running_job_is_what_its_job_says(tmp_path: Path) -> None:
    world = World()
    home = Home(world, tmp_path, f"sqlite:///{tmp_path / 'whetstone.db'}", "one", silent_s=5.0)
    row = JobRow(id="j-1", kind="optimize", state=JobState.QUEUED, title="x", owner="ann", spec="{}")
    home.store.run(lambda session: queue.submit(session, row))
    home.tick()
    home.tick()
    shutil.rmtree(tmp_path / "jobs" / "j-1")
    for _ in range(4):
        home.time += 4.0
        home.tick()
    with home.store.read() as session:
        ended = queue.get(session, "j-1")
        assert ended.state == JobState.FAILED
        assert str(ended.error).startswith(f"The job's folder {tmp_path / 'jobs' / 'j-1' / '1'} was removed")
        assert "see the log" not in str(ended.error)
