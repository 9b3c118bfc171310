"""Real processes that misbehave, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from backend import processes
from backend.serving.process import ServerProcess
from backend.settings import CHECKOUT
from tests.homes import eventually
from tests.live_processes import has_ended, kill

pytestmark = pytest.mark.process

# Starts a child that ignores SIGTERM and a daemon in a session of its own, writes their pids, then waits.
STUBBORN = """
import os, signal, subprocess, sys, time
ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", ignore])
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    daemon = os.fork()
    if daemon == 0:
        os.execv(sys.executable, [sys.executable, "-c", ignore])
    os.write(writer, str(daemon).encode())
    os._exit(0)
daemon = os.read(reader, 20).decode()
print("cwd", os.getcwd(), flush=True)
print("pids", os.getpid(), child.pid, daemon, flush=True)
time.sleep(600)
"""


def environment(**extra: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), **extra}


def wait_for(log: Path, word: str) -> list[str]:
    """The words after `word` on its line, once it is in the log."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        lines = [
            line
            for line in (log.read_text() if log.exists() else "").splitlines(keepends=True)
            if line.startswith(word)
        ]
        if lines and lines[0].endswith("\n"):
            return lines[0].split()[1:]
        time.sleep(0.02)
    raise AssertionError(f"no {word!r} in {log}")


def all_end(tree: list[psutil.Process]) -> None:
    eventually("they end", lambda: all(has_ended(process) for process in tree))


def read_tree(log: Path) -> list[psutil.Process]:
    """The server, its child and its daemon, as soon as the log names them."""
    return [psutil.Process(int(word)) for word in wait_for(log, "pids")]


def stubborn(log: Path) -> ServerProcess:
    return ServerProcess([sys.executable, "-c", STUBBORN], log=log, environment=environment(), grace_s=20)


def test_stop_ends_children_that_ignore_sigterm_and_daemons_that_left_the_session(tmp_path: Path) -> None:
    with stubborn(tmp_path / "log") as process:
        tree = read_tree(tmp_path / "log")
        assert len(tree) == 3 and not any(has_ended(each) for each in tree)
    assert not any(psutil.pid_exists(each.pid) for each in tree)
    assert process.stop() == 128 + signal.SIGTERM


@pytest.mark.parametrize("victim", ["keeper", "server"])
def test_nothing_remains_when_one_of_the_processes_is_killed(tmp_path: Path, victim: str) -> None:
    with stubborn(tmp_path / "log") as process:
        tree = [psutil.Process(process.pid), *read_tree(tmp_path / "log")]
        tree[0 if victim == "keeper" else 1].kill()
        if victim == "server":
            all_end(tree)
    # Without its keeper a daemon that left the group is out of reach; no server starts one.
    all_end(tree if victim == "server" else tree[:3])
    kill(tree[3:])


def test_kill_9_of_the_worker_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    worker = f"""
import os, sys, time
sys.path.insert(0, {str(CHECKOUT)!r})
from pathlib import Path
from backend import processes
from backend.serving.process import ServerProcess
ServerProcess([sys.executable, "-c", {STUBBORN!r}], log=Path("log"), environment=dict(os.environ), grace_s=5).start()
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", worker], cwd=tmp_path, env=environment()) as process:
        tree = read_tree(tmp_path / "log")
        folder = Path(wait_for(tmp_path / "log", "cwd")[0])
        assert folder.name.startswith("whetstone-") and folder.exists()
        process.kill()
    all_end(tree)
    eventually("its folder is gone", lambda: not folder.exists())


def test_a_long_folder_for_temporary_files_leaves_room_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 60)))
    show = "import os; print('cwd', os.getcwd(), flush=True)"
    with ServerProcess([sys.executable, "-c", show], log=tmp_path / "log", environment=environment()) as process:
        assert process.wait(30) == 0
    assert len(wait_for(tmp_path / "log", "cwd")[0]) < 60


def test_the_server_has_its_own_group_in_the_workers_session_and_inherits_the_job(tmp_path: Path) -> None:
    show = (
        "import os, time; print('ids', os.getpgid(0), os.getsid(0), os.environ['WHETSTONE_JOB'], flush=True); "
        "time.sleep(600)"
    )
    command = [sys.executable, "-c", show]
    with ServerProcess(command, log=tmp_path / "log", environment=environment(WHETSTONE_JOB="j-1")) as process:
        group, session, job = wait_for(tmp_path / "log", "ids")
        assert (int(group), int(session), job) == (process.pid, os.getsid(0), "j-1")
        assert int(group) != os.getpgid(0)


def test_links_are_in_the_working_directory_which_goes_with_the_process(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    show = "import os; print('cwd', os.getcwd(), os.listdir('target-model'), os.environ['TMPDIR'], flush=True)"
    process = ServerProcess(
        [sys.executable, "-c", show],
        log=tmp_path / "log",
        environment=environment(),
        links={"target-model": tmp_path / "model"},
    )
    process.start()
    assert process.wait(30) == 0
    folder, listing, scratch = wait_for(tmp_path / "log", "cwd")
    assert (folder, listing) == (scratch, "['config.json']")
    assert not Path(folder).exists() and (tmp_path / "model" / "config.json").exists()
    process.stop()


@pytest.mark.parametrize(("code", "number"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_of_the_command_is_seen(tmp_path: Path, code: str, number: int) -> None:
    with ServerProcess([sys.executable, "-c", code], log=tmp_path / "log", environment=environment()) as process:
        assert process.wait(30) == number


def test_a_command_that_does_not_exist_is_named_in_the_log(tmp_path: Path) -> None:
    with ServerProcess(["/no/such/program"], log=tmp_path / "log", environment=environment()) as process:
        assert process.wait(30) == 127
    assert "cannot start /no/such/program" in (tmp_path / "log").read_text()


def test_the_peak_counts_every_process_of_the_tree(tmp_path: Path) -> None:
    code = """
import subprocess, sys, time
inner = "b = bytearray(60 << 20); print('held', flush=True); import time; time.sleep(600)"
subprocess.Popen([sys.executable, "-c", inner]); b = bytearray(60 << 20); time.sleep(600)
"""
    with ServerProcess([sys.executable, "-c", code], log=tmp_path / "log", environment=environment()) as process:
        wait_for(tmp_path / "log", "held")
        deadline = time.monotonic() + 15
        while process.peak_rss_bytes < 120 << 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert 120 << 20 <= process.peak_rss_bytes < 300 << 20
        assert len(processes.list_tree(process.pid)) == 3
