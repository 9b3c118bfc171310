"""Workers as processes of this machine: a session of their own each, found again by pid and start time.

A worker outlives the supervisor that started it. Everything a job starts carries WHETSTONE_JOB in its environment,
which is what `sweep` goes by: a process that changed its group or session is still found.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import psutil

from backend import processes
from backend.channel import Channel
from backend.domain.errors import WorkError
from backend.domain.jobs.jobs import Handle, WorkerState
from backend.launchers.base import Launcher

MARK = "WHETSTONE_JOB"
SWEEP_GRACE_S = 5.0


class LocalLauncher(Launcher):
    """Starts workers as processes of this machine. `home` tells two homes' jobs apart in the mark.

    A handle's data: `pid`, and `started`, the process's `start_stamp`.
    """

    name = "local"

    def __init__(self, home: Path, python: str = sys.executable) -> None:
        self.home, self.python = home, python
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, job_id: str, channel: Channel) -> Handle:
        # 1. Mark the worker, and all that it starts, by the job.
        environment = {
            **os.environ,
            MARK: self._mark(job_id),
            "WHETSTONE_HOME": str(self.home),
            "PYTHONUNBUFFERED": "1",
        }
        try:
            with channel.log_sink() as log:
                child = subprocess.Popen(
                    [self.python, "-m", "backend.worker", channel.address],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=environment,
                )
        except OSError as error:
            raise WorkError(
                f"The worker's process cannot be started ({error}): see `whetstone doctor`, then resume the job."
            ) from None

        # 2. Remember it, for its exit code.
        self._children[child.pid] = child
        data = {"host": socket.gethostname(), "pid": child.pid, "started": processes.start_stamp(child.pid)}
        return Handle(launcher=self.name, place=f"process {child.pid}", data=data)

    def poll(self, handle: Handle) -> WorkerState:
        child = self._children.get(handle.data["pid"])
        if child is None:
            return WorkerState(alive=_process(handle) is not None)
        code = child.poll()
        if code is not None:
            del self._children[child.pid]
        return WorkerState(alive=code is None, code=code)

    def cancel(self, handle: Handle, *, force: bool) -> None:
        process = _process(handle)
        if process is not None:
            processes.send_signal([process], signal.SIGKILL if force else signal.SIGTERM)

    def sweep(self, job_id: str, handle: Handle | None) -> None:
        processes.end(processes.find_marked(MARK, self._mark(job_id)), SWEEP_GRACE_S)

    def sweep_others(self, live_jobs: Collection[str]) -> None:
        own = {self._mark(job_id) for job_id in live_jobs}
        processes.end(
            [process for process, mark in processes.list_marks(MARK, f"{self.home}:") if mark not in own], SWEEP_GRACE_S
        )

    def _mark(self, job_id: str) -> str:
        return f"{self.home}:{job_id}"


def _process(handle: Handle) -> psutil.Process | None:
    return processes.find_running(handle.data["pid"], handle.data["started"])
