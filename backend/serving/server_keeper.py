"""The keeper: starts one command and outlives nothing. Standard library only; runs under any interpreter, as a script.

It stands between a worker and a model server. It is the child subreaper of everything the server starts (prctl(2),
PR_SET_CHILD_SUBREAPER), so a process whose own parent was killed becomes its child and cannot escape; and it looks at
its parent twice a second, so that nothing remains when the worker is killed with SIGKILL. Knows nothing of vLLM or
HTTP.

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
"""How long multiprocessing's resource trackers get to unlink the shared memory of processes that were killed."""


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _spawn(command: list[str]) -> int:
    """Fork and exec; the command dies with the keeper, whatever ends it."""
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
    """Every process below this one, as /proc shows it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, queue = [], [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _is_tracker(pid: int) -> bool:
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _reap(codes: dict[int, int]) -> bool:
    """Collect whoever ended; True while children remain."""
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return True
            codes[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return False


def _sweep(codes: dict[int, int]) -> None:
    """End everything below; resource trackers last, since they clean up after the others."""
    deadline = time.monotonic() + TRACKER_SECONDS
    while _reap(codes):
        late = time.monotonic() > deadline
        for pid in [pid for pid in descendants() if late or not _is_tracker(pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _forget_openmp() -> None:
    """Remove what Intel's OpenMP leaves in shared memory for processes that were killed: one small file each."""
    for left in Path("/dev/shm").glob(f"__KMP_REGISTERED_LIB_*_{os.getuid()}"):
        pid = left.name.split("_")[-2]
        if not Path("/proc", pid).exists():
            left.unlink(missing_ok=True)


def _watch(pid: int, parent: int, grace: float, codes: dict[int, int]) -> None:
    """Return when the command ended, or when it did not within `grace` seconds of being asked to, or the parent is
    gone."""
    deadline: float | None = None
    while _reap(codes) and pid not in codes:
        info = signal.sigtimedwait(WATCHED, POLL_SECONDS)
        asked = info is not None and info.si_signo != signal.SIGCHLD
        if os.getppid() != parent or (deadline is not None and time.monotonic() > deadline):
            return
        if asked and deadline is None:
            deadline = time.monotonic() + grace
            os.kill(pid, signal.SIGTERM)


def main(arguments: list[str]) -> int:
    parent, grace, scratch, command = int(arguments[0]), float(arguments[1]), arguments[2], arguments[3:]
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    codes: dict[int, int] = {}
    pid = _spawn(command)
    _watch(pid, parent, grace, codes)
    _sweep(codes)
    _forget_openmp()
    shutil.rmtree(scratch, ignore_errors=True)
    code = codes.get(pid, -signal.SIGKILL)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
