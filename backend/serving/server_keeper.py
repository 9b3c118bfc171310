"""The keeper: a script that starts one command and ends all of it when its parent ends.

A worker starts a model server through it. It is the child subreaper of everything the server starts (prctl(2),
PR_SET_CHILD_SUBREAPER), so a process whose own parent was killed becomes its child and cannot escape; and it checks its
parent twice a second, so that nothing remains if the worker is killed with SIGKILL. Standard library only, for any
interpreter. Knows nothing of vLLM or HTTP.

    python server_keeper.py PARENT_PID GRACE_SECONDS SCRATCH_FOLDER COMMAND...

Exits with the command's code, or 128 + the number of the signal that ended it. SCRATCH_FOLDER is removed at the end.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.5
WATCHED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
TRACKER_SECONDS = 3.0
"""Seconds for multiprocessing's resource trackers to unlink the shared memory of processes that were killed."""


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _spawn(command: list[str]) -> int:
    """Fork and exec the command; the kernel ends it with the keeper, whatever ends that."""
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    if os.getppid() == keeper:
        try:
            os.execv(command[0], command)
        except OSError as error:
            os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def descendants() -> list[int]:
    """Return every process below this one, as /proc shows it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    pids, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        pids += below
        queue += below
    return pids


def _is_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _reap(codes: dict[int, int]) -> bool:
    """Collect the exit codes of ended children; return True while children remain."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
            codes[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return False


def _end_descendants(codes: dict[int, int]) -> None:
    """End every descendant; resource trackers last, since they clean up after the others."""
    deadline = time.monotonic() + TRACKER_SECONDS
    while _reap(codes):
        late = time.monotonic() > deadline
        for pid in [pid for pid in descendants() if late or not _is_tracker(pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _remove_openmp_files() -> None:
    """Remove the small file that Intel's OpenMP leaves in shared memory for each process that was killed."""
    for file in Path("/dev/shm").glob(f"__KMP_REGISTERED_LIB_*_{os.getuid()}"):
        pid = file.name.split("_")[-2]
        if not Path("/proc", pid).exists():
            file.unlink(missing_ok=True)


def _wait_for_end(pid: int, parent: int, grace: float, codes: dict[int, int]) -> None:
    """Wait until the command ends, or `grace` seconds after a stop signal, or until the parent has ended."""
    deadline: float | None = None
    while _reap(codes) and pid not in codes:
        info = signal.sigtimedwait(WATCHED, POLL_SECONDS)
        stop_requested = info is not None and info.si_signo != signal.SIGCHLD
        if os.getppid() != parent or (deadline is not None and time.monotonic() > deadline):
            return
        if stop_requested and deadline is None:
            deadline = time.monotonic() + grace
            os.kill(pid, signal.SIGTERM)


def main(arguments: list[str]) -> int:
    # 1. Block signals, so that `_wait_for_end` receives them, and become the subreaper.
    parent, grace, scratch, command = int(arguments[0]), float(arguments[1]), arguments[2], arguments[3:]
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)

    # 2. Run the command to its end.
    codes: dict[int, int] = {}
    pid = _spawn(command)
    _wait_for_end(pid, parent, grace, codes)

    # 3. End and remove whatever it left.
    _end_descendants(codes)
    _remove_openmp_files()
    shutil.rmtree(scratch, ignore_errors=True)
    code = codes.get(pid, -signal.SIGKILL)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
