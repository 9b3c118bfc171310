"""Workers forked from a template: one job a process, found by its mark, and none that its supervisor did not let
begin."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from backend import processes
from backend.channel import Channel
from backend.domain.jobs.jobs import Handle, InstallSpec, Outcome
from backend.launchers import warm
from backend.launchers.local import MARK, LocalLauncher
from tests.homes import eventually

pytestmark = pytest.mark.process
NO_SUCH = InstallSpec(engine="compress", action="remove").model_dump_json()


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLauncher]:
    monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "engines"))
    made = LocalLauncher(tmp_path, warm=True)
    yield made
    made.close()


def channel(folder: Path, job: str, spec: str = NO_SUCH) -> Channel:
    opened = Channel(folder / "jobs" / job)
    opened.open(spec)
    return opened


def ended(launcher: LocalLauncher, handle: Handle) -> Outcome:
    outcome = Outcome(alive=True)

    def over() -> bool:
        nonlocal outcome
        outcome = launcher.poll(handle)
        return not outcome.alive

    eventually("its end", over, 60)
    return outcome


def test_each_job_has_a_process_a_log_and_an_exit_code_of_its_own(tmp_path: Path, launcher: LocalLauncher) -> None:
    opened = [channel(tmp_path, f"j-{number}") for number in range(3)]
    handles = [launcher.start(f"j-{number}", each) for number, each in enumerate(opened)]
    assert len({handle.data["pid"] for handle in handles}) == 3 and not launcher._children, "none was started cold"
    for each, handle in zip(opened, handles, strict=True):
        assert ended(launcher, handle).code == 1
        result = each.result()
        assert result is not None and result.outcome == "failed" and result.error and result.error in each.log()
        assert each.log().count("The worker has started.") == 1


def test_a_supervisor_with_a_thousand_files_open_starts_workers_too(tmp_path: Path, launcher: LocalLauncher) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    with ExitStack() as held:
        for _ in range(1100):
            held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        handle = launcher.start("j-1", channel(tmp_path, "j-1"))
        assert not launcher._children, "it was not started cold"
        assert ended(launcher, handle).code == 1


def test_a_worker_is_found_by_its_mark_and_ends_with_its_signal(tmp_path: Path, launcher: LocalLauncher) -> None:
    opened = channel(tmp_path, "j-1")
    (Path(opened.address) / "spec.json").unlink()
    os.mkfifo(Path(opened.address) / "spec.json")  # it waits for its specification for ever
    handle = launcher.start("j-1", opened)
    pid = handle.data["pid"]
    assert [each.pid for each in processes.marked(MARK, launcher._mark("j-1"))] == [pid] and os.getsid(pid) == pid
    os.kill(pid, signal.SIGKILL)
    assert ended(launcher, handle).code == -signal.SIGKILL


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


def test_a_worker_that_is_gone_is_not_said_to_live_until_its_template_says_so(
    tmp_path: Path, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = channel(tmp_path, "j-1")
    (Path(opened.address) / "spec.json").unlink()
    os.mkfifo(Path(opened.address) / "spec.json")
    handle = launcher.start("j-1", opened)
    assert launcher._template is not None and launcher._template._process is not None
    template = launcher._template._process.pid
    os.kill(template, signal.SIGSTOP)
    try:
        os.kill(handle.data["pid"], signal.SIGKILL)
        eventually("its end", lambda: processes.running(handle.data["pid"], handle.data["started"]) is None, 60)
        with monkeypatch.context() as patched:
            patched.setattr(warm, "ANSWER_S", 0.0)
            assert not launcher.poll(handle).alive
    finally:
        os.kill(template, signal.SIGCONT)
    eventually("its code", lambda: launcher.poll(handle).code == -signal.SIGKILL, 60)


def test_a_worker_goes_on_without_its_template_and_the_next_one_has_another(
    tmp_path: Path, launcher: LocalLauncher
) -> None:
    opened = channel(tmp_path, "j-1")
    (Path(opened.address) / "spec.json").unlink()
    os.mkfifo(Path(opened.address) / "spec.json")
    handle = launcher.start("j-1", opened)
    launcher.close()
    assert launcher.poll(handle).alive
    launcher.sweep("j-1", handle)
    assert not launcher.poll(handle).alive
    assert ended(launcher, launcher.start("j-2", channel(tmp_path, "j-2"))).code == 1


def test_where_the_template_does_not_answer_workers_start_cold(
    tmp_path: Path, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher._template, "_command", ["/bin/false"])
    handle = launcher.start("j-1", channel(tmp_path, "j-1"))
    assert handle.data["pid"] in launcher._children and ended(launcher, handle).code == 1


def test_a_worker_whose_supervisor_went_before_it_let_it_begin_never_begins(
    tmp_path: Path, launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(BaseException):
        """As kill -9."""

    def killed(*_: object) -> int:
        raise Gone

    opened = channel(tmp_path, "j-1")
    with monkeypatch.context() as patched, pytest.raises(Gone):
        patched.setattr(os, "write", killed)
        launcher.start("j-1", opened)
    launcher.close()
    eventually("nothing of it", lambda: not processes.marked(MARK, launcher._mark("j-1")), 60)
    assert opened.log() == "" and opened.result() is None
