"""Each question about a process has an answer before and after it ended."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil
import pytest

from tests import live_processes
from tests.homes import eventually

pytestmark = pytest.mark.process


def test_a_process_that_ends_between_two_questions_raises_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], cwd=tmp_path) as child:
        process = psutil.Process(child.pid)
        try:
            # A program that is being started has a name before it has a command line.
            eventually("its program runs", lambda: live_processes.command(process) == ["sleep", "600"])
            assert _answers(process) == (["sleep", "600"], "sleep", tmp_path, [])
            assert process in live_processes.children() and live_processes.children(child.pid) == []
            assert not live_processes.has_ended(process)
        finally:
            live_processes.kill([process])

        # Ended, and nobody has waited for it.
        eventually("it has ended", lambda: live_processes.has_ended(process))
        assert psutil.pid_exists(child.pid) and _answers(process) == ([], "", None, [])
    # Gone.
    assert child.returncode == -9 and not psutil.pid_exists(child.pid)
    assert live_processes.has_ended(process) and _answers(process) == ([], "", None, [])
    assert live_processes.children(child.pid) == []
    assert live_processes.answer(lambda: os.getsid(child.pid), 0) == 0
    live_processes.kill([process])


def _answers(process: psutil.Process) -> tuple[list[str], str, Path | None, list[psutil.pconn]]:
    return (
        live_processes.command(process),
        live_processes.name(process),
        live_processes.working_folder(process),
        live_processes.connections(process),
    )


def test_another_error_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        live_processes.answer(lambda: 1 // 0, 0)
