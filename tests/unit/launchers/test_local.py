"""Workers as processes of this machine: one process per job, found by its mark."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from backend import processes
from backend.channel import Channel
from backend.domain.jobs.jobs import Handle, InstallSpec, WorkerState
from backend.launchers.local import MARK, LocalLauncher
from tests.homes import eventually

pytestmark = pytest.mark.process
NO_SUCH = InstallSpec(engine="compress", action="remove").model_dump_json()


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalLauncher:
    monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "engines"))
    return LocalLauncher(tmp_path)


def channel(folder: Path, job: str, spec: str = NO_SUCH) -> Channel:
    opened = Channel(folder / "jobs" / job)
    opened.open(spec)
    return opened


def ended(launcher: LocalLauncher, handle: Handle) -> WorkerState:
    outcome = WorkerState(alive=True)

    def over() -> bool:
        nonlocal outcome
        outcome = launcher.poll(handle)
        return not outcome.alive

    eventually("its end", over, 60)
    return outcome


def test_each_job_has_a_process_a_log_and_an_exit_code_of_its_own(tmp_path: Path, launcher: LocalLauncher) -> None:
    opened = [channel(tmp_path, f"j-{number}") for number in range(3)]
    handles = [launcher.start(f"j-{number}", each) for number, each in enumerate(opened)]
    assert len({handle.data["pid"] for handle in handles}) == 3
    for each, handle in zip(opened, handles, strict=True):
        assert ended(launcher, handle).code == 1
        result = each.result()
        assert result is not None and result.outcome == "failed" and result.error and result.error in each.log()
        assert each.log().count("The worker has started.") == 1


def test_a_worker_is_found_by_its_mark_and_ends_with_its_signal(tmp_path: Path, launcher: LocalLauncher) -> None:
    opened = channel(tmp_path, "j-1")
    (Path(opened.address) / "spec.json").unlink()
    os.mkfifo(Path(opened.address) / "spec.json")  # it waits for its specification for ever
    handle = launcher.start("j-1", opened)
    pid = handle.data["pid"]
    assert [each.pid for each in processes.find_marked(MARK, launcher._mark("j-1"))] == [pid] and os.getsid(pid) == pid
    os.kill(pid, signal.SIGKILL)
    assert ended(launcher, handle).code == -signal.SIGKILL


def test_a_worker_that_ends_while_it_is_cancelled_is_no_error(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        process = psutil.Process(child.pid)
        child.kill()
    monkeypatch.setattr(processes, "find_running", lambda pid, start: process)  # it ran a moment ago
    for force in (False, True):
        launcher.cancel(Handle(launcher="local", place="here", data={"pid": child.pid, "started": ""}), force=force)


def test_what_is_of_no_kept_job_is_ended_and_no_other_homes(tmp_path: Path, launcher: LocalLauncher) -> None:
    other, handles = LocalLauncher(tmp_path / "other"), {}
    for name, each in (("j-1", launcher), ("j-2", launcher), ("j-3", other)):
        opened = channel(tmp_path, name)
        (Path(opened.address) / "spec.json").unlink()
        os.mkfifo(Path(opened.address) / "spec.json")  # it waits for its specification for ever
        handles[name] = (each, each.start(name, opened))
    try:
        launcher.sweep_others({"j-2"})
        assert [each.poll(handle).alive for each, handle in handles.values()] == [False, True, True]
    finally:
        launcher.sweep_others(())
        other.sweep("j-3", None)
    assert not any(each.poll(handle).alive for each, handle in handles.values())
