"""A worker that is stopped in the middle of its work, so that nothing a test then does to its job can come too late.

A job of a small model may end between the look that finds it at work and what is done to it: a cancel finds it
succeeded, a kill finds no process. Such a test holds the worker first.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from backend.domain.recipe import recipe
from backend.service import Workspace
from backend.service.jobs import jobs
from tests.homes import eventually, until_phase, worker_pid

UNENDING = recipe.read(
    {
        "name": "unending",
        "steps": [{"prune": {"method": "magnitude", "sparsity": 0.1, "recover": {"minutes": 30}}}],
    }
)
"""Recovers for half an hour, for a job that is ended before: its phase `recover` cannot be over between two looks."""


def hold(workspace: Workspace, job_id: str, phase: str) -> int:
    """Wait until the job is in that phase, then stop its worker with SIGSTOP; return the worker's pid. A job that ended
    before fails the test."""
    until_phase(workspace, job_id, phase)
    return _stop(workspace, job_id)


def hold_once(workspace: Workspace, job_id: str, reached: Callable[[], bool]) -> int:
    """Like `hold`, as soon as the condition holds."""

    def at_work() -> bool:
        current = jobs.show(workspace, job_id)
        assert not current.ended, f"{job_id} ended before: {current.state} {current.error}"
        return reached()

    eventually(f"the moment to hold {job_id}", at_work)
    return _stop(workspace, job_id)


def _stop(workspace: Workspace, job_id: str) -> int:
    pid = worker_pid(workspace)
    os.kill(pid, signal.SIGSTOP)
    attempt = jobs.show(workspace, job_id).attempt
    assert not (workspace.settings.jobs / job_id / str(attempt) / "result.json").exists(), "held too late"
    return pid


def release(pid: int) -> None:
    """Let it go on."""
    os.kill(pid, signal.SIGCONT)


def release_once_cancelled(pid: int) -> None:
    """Let it go on as soon as SIGTERM waits for it: it stops there, and does nothing more of its work."""
    eventually(f"SIGTERM for process {pid}", lambda: signal.SIGTERM in _pending(pid))
    release(pid)


def _pending(pid: int) -> set[signal.Signals]:
    """Signals of the whole process that are still to be delivered (proc(5), ShdPnd)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    mask = int(status["ShdPnd"], 16)
    return {number for number in signal.Signals if mask >> (number - 1) & 1}
