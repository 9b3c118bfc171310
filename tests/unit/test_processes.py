"""Processes of this machine: what a tree of them uses, and whether a pid still means the same one."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from backend import processes
from backend.processes import usage
from backend.settings import CHECKOUT

HOLD = "import sys; held = bytearray(80_000_000); print('ready', flush=True); sys.stdin.read()"
BURN = "import time\nwhile time.process_time() < 0.5: pass"


def test_memory_of_a_child_counts_while_it_lives() -> None:
    before = usage(os.getpid()).rss_bytes
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"ready\n"
        assert usage(os.getpid()).rss_bytes - before > 75_000_000
        assert usage(child.pid).rss_bytes > 80_000_000


def test_processor_time_of_a_child_stays_counted_when_it_has_ended() -> None:
    before = usage(os.getpid()).cpu_s
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert usage(os.getpid()).cpu_s - before > 0.4


def test_a_pid_means_the_same_process_only_with_its_start_time() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        started = processes.start_stamp(child.pid)
        assert processes.find_running(child.pid, started) is not None
        assert processes.find_running(child.pid, "1@another-boot") is None
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert processes.find_running(child.pid, started) is None  # a zombie
    assert processes.find_running(child.pid, started) is None


def test_a_process_has_its_environment_as_soon_as_its_parent_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """3 of 100 had none yet when their parent read it: a job just started was not found by its mark."""
    monkeypatch.setattr(processes, "STARTING_S", 120.0)
    for number in range(200):
        with subprocess.Popen(["sleep", "600"], env={"MARK": f"m-{number}"}) as child:
            try:
                assert processes._read_environment(child.pid) == f"MARK=m-{number}\0".encode()
            finally:
                child.kill()


def test_a_process_without_an_environment_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STARTING_S", 3600.0)  # a wait would end with the test's own time
    with subprocess.Popen(["sleep", "600"], env={}) as child:
        try:
            assert processes.find_marked("MARK", "") == []
        finally:
            child.kill()


def test_a_child_that_ended_before_it_was_asked_takes_nothing_and_raises_nothing() -> None:
    """What it did not take was written again when its standard input was closed: the cause was a "Broken pipe"."""
    with subprocess.Popen(["true"], stdin=subprocess.PIPE, text=True) as child:
        child.wait()
        assert not processes.send_line(child, "x" * 100)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert processes.send_line(child, "asked") and child.stdout is not None
        assert child.stdout.readline() == "asked\n"


def test_who_ignores_sigterm_is_killed_after_the_grace() -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        processes.end(processes.list_tree(child.pid), 0.2)
        child.wait()
        assert not processes.list_tree(child.pid) and processes.usage(child.pid) == (0, 0.0)


def test_what_ended_is_gone_although_its_parent_does_not_reap_it() -> None:
    """In a container process 1 may reap late or never: stopping a supervisor took two seconds, or 45 and was told as
    failed."""
    careless = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", careless], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        orphan = psutil.Process(int(parent.stdout.readline()))
        assert processes.wait_for_end([orphan], 0.1) == [orphan]
        orphan.kill()
        assert processes.wait_for_end([orphan], 20) == [] and orphan.status() == psutil.STATUS_ZOMBIE
        processes.end([orphan], 20)
        parent.communicate(timeout=20)


def test_a_clock_that_is_set_leaves_a_process_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's boot time, which psutil adds to the ticks of a start, moves with the clock."""
    started = processes.start_stamp(os.getpid())
    moved = psutil.boot_time() + 1
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: moved)
    assert processes.find_running(os.getpid(), started) is not None


INTERRUPTED = """
import signal, sys
from backend.processes import SignalEvent

asked = SignalEvent.handle([signal.SIGTERM])
def profile(frame, event, argument):  # each call that handlers and the event make is interrupted by one more signal
    sys.setprofile(None)
    signal.raise_signal(signal.SIGTERM)
    sys.setprofile(profile if profile.left else None)
    profile.left -= 1
profile.left = 200
with asked._cond:  # as in the middle of `wait`
    signal.raise_signal(signal.SIGTERM)
    sys.setprofile(profile)
    signal.raise_signal(signal.SIGTERM)
    sys.setprofile(None)
    assert asked.is_set()
assert asked.wait(20)
"""


def test_signals_that_come_within_signals_and_within_a_wait_lock_nothing() -> None:
    """A studio that was sent two SIGTERMs at once waited for itself for ever."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], cwd=CHECKOUT, timeout=30, check=False)
    assert done.returncode == 0
