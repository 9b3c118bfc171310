"""Processes of this machine: finds one again by pid and start, lists its tree, measures and ends it. Linux only."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import NamedTuple

import psutil

PROCESS_ENDED = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
POLL_S = 0.05
KILLED_S = 10.0
"""Seconds that a process may take to end after SIGKILL."""
STARTING_S, STARTING_POLL_S = 1.0, 0.001
"""Longest wait for the environment of a program that is being started, and between two readings of it."""


class SignalEvent(threading.Event):
    """An event that signals set, however many there are and whenever they come.

    A handler runs in the main thread wherever that is: perhaps inside this event's own lock, or in another handler.
    There `Event.set` would wait for itself for ever. So a handler only puts a note into a SimpleQueue, whose `put` may
    be entered again (library reference, queue), and a thread sets the event.
    """

    def __init__(self) -> None:
        super().__init__()
        self._notes: SimpleQueue[None] = SimpleQueue()
        self._noted = False
        threading.Thread(target=self._carry, daemon=True, name="signals").start()

    def _carry(self) -> None:
        self._notes.get()
        self.set()

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; to be given to `signal.signal`."""
        self._noted = True
        self._notes.put(None)

    def is_set(self) -> bool:
        """Return whether a signal came, also while its note is on its way."""
        return self._noted or super().is_set()

    @classmethod
    def handle(cls, numbers: Iterable[signal.Signals]) -> SignalEvent:
        """Return an event that these signals set from now on. Main thread only."""
        signalled = cls()
        for number in numbers:
            signal.signal(number, signalled.note)
        return signalled


class Usage(NamedTuple):
    """`rss_bytes`: resident memory of a process tree. `cpu_s`: processor seconds of it and of what it has reaped."""

    rss_bytes: int
    cpu_s: float


def start_stamp(pid: int) -> str:
    """Return when the process started: clock ticks since the boot (proc_pid_stat(5), field 22) and that boot's id.

    Unlike a time of day it stays the same when the clock is set. Raises psutil.NoSuchProcess.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    return f"{fields[19]}@{BOOT_ID.read_text().strip()}"


def find_running(pid: int, start: str) -> psutil.Process | None:
    """Return the process with that pid and `start_stamp` if it still runs; another process may have the pid by now."""
    try:
        process = psutil.Process(pid)
        return process if start_stamp(pid) == start and process.status() != psutil.STATUS_ZOMBIE else None
    except PROCESS_ENDED:
        return None


def list_tree(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants; empty if it is gone."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def usage(pid: int) -> Usage:
    """Return memory and processor time of the process and all its descendants; about 2 ms with a hundred processes.

    Memory is the private pages of each, and the largest file-backed share once: summing whole resident sizes would
    count libraries once per process; reading proportional sizes (smaps) walks every page table and would disturb what
    is measured. Processor time of children that have ended stays with the process that waited for them.
    """
    private = shared = 0
    cpu_s = 0.0
    for process in list_tree(pid):
        with suppress(*PROCESS_ENDED), process.oneshot():
            memory, times = process.memory_info(), process.cpu_times()
            private += memory.rss - memory.shared
            shared = max(shared, memory.shared)
            cpu_s += times.user + times.system + times.children_user + times.children_system
    return Usage(private + shared, cpu_s)


def proportional_memory(pid: int) -> int:
    """Return the bytes of the process and its descendants, each shared page divided by the processes that map it
    (proc_pid_smaps(5)).

    Walks page tables, some ten milliseconds per gigabyte: not while something is measured.
    """
    size = 0
    for process in list_tree(pid):
        with suppress(*PROCESS_ENDED, OSError):
            rows = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            size += sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Pss:"))
    return size


def find_marked(name: str, value: str) -> list[psutil.Process]:
    """Return every process but this one that has that variable in its environment."""
    return [process for process, mark in list_marks(name, value) if mark == value]


def list_marks(name: str, prefix: str) -> list[tuple[psutil.Process, str]]:
    """Return every process but this one in whose environment that variable begins with `prefix`, with its value."""
    entry, marks = f"\0{name}={prefix}".encode(), list[tuple[psutil.Process, str]]()
    for pid in psutil.pids():
        with suppress(*PROCESS_ENDED, OSError):
            _, separator, rest = (b"\0" + _read_environment(pid)).partition(entry)
            if separator and pid != os.getpid():
                marks.append((psutil.Process(pid), prefix + os.fsdecode(rest.partition(b"\0")[0])))
    return marks


def _read_environment(pid: int) -> bytes:
    """Return the environment of a process as the kernel has it, or wait for it where its program is being started.

    Between fork and the first instruction of the program, exec(2) has a moment in which the process has neither
    arguments nor an environment. Its parent may be running again by then. Raises OSError.
    """
    process, deadline = Path(f"/proc/{pid}"), time.monotonic() + STARTING_S
    while True:
        environment = (process / "environ").read_bytes()
        if environment or (process / "cmdline").read_bytes() or time.monotonic() > deadline:
            return environment or (process / "environ").read_bytes()
        (process / "exe").readlink()  # raises for a thread of the kernel and for a process that has ended
        time.sleep(STARTING_POLL_S)


def end(processes: Sequence[psutil.Process], grace_s: float = 0.0) -> None:
    """Send SIGTERM, wait if there is a grace, then send SIGKILL to those that still run. Return when they are gone.

    psutil compares start times: a process that has one of their pids by now is spared.
    """
    if grace_s:
        send_signal(processes, signal.SIGTERM)
        processes = wait_for_end(processes, grace_s)
    send_signal(processes, signal.SIGKILL)
    wait_for_end(processes, KILLED_S)


def wait_for_end(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait, and return the processes that still run after `timeout_s`.

    A process that has ended and that nobody reaped is gone too: reaping is up to its parent, which in a container is
    often a process 1 that does so late or never.
    """
    deadline, those = time.monotonic() + timeout_s, list(processes)
    while those:
        _, those = psutil.wait_procs(those, timeout=min(POLL_S, max(0.0, deadline - time.monotonic())))
        those = [process for process in those if not _unreaped(process)]
        if time.monotonic() > deadline:
            break
    return those


def _unreaped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def send_signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send the signal to those that still run: one that was found a moment ago may have ended since."""
    for process in processes:
        with suppress(*PROCESS_ENDED):
            process.send_signal(number)


def send_line(process: subprocess.Popen[str], line: str) -> bool:
    """Write a line to a child's standard input; return False where the child has ended already.

    What such a child did not take would be written again when its standard input is closed, and fail there.
    """
    assert process.stdin is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        with suppress(BrokenPipeError):
            process.stdin.close()
        return False
    return True
