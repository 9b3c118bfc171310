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
from typing import BinaryIO

import psutil

from backend import processes
from backend.channel import Channel
from backend.domain.errors import WorkError
from backend.domain.jobs.jobs import Handle, Outcome
from backend.launchers.base import Launcher
from backend.launchers.warm import Template, Worker

MARK = "WHETSTONE_JOB"
JOB_WIDTH = 32
"""Characters that a mark keeps for a job's id, so that all marks of a home have one length."""
SWEEP_GRACE_S = 5.0


class LocalLauncher(Launcher):
    """`home` tells two homes' jobs apart in the mark. A handle's data: `pid`, and `started`, the process's start
    time."""

    name = "local"

    def __init__(self, home: Path, python: str = sys.executable, *, warm: bool = False) -> None:
        """`warm`: workers are forked from a template (`launchers.warm`), where it answers."""
        self.home, self.python = home, python
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._template = Template(python, self._environment("." * len(self._mark("")))) if warm else None

    def start(self, job_id: str, channel: Channel) -> Handle:
        try:
            with channel.log_sink() as log:
                pid, started = self._warm(job_id, channel, log) or self._cold(job_id, channel, log)
        except OSError as error:
            raise WorkError(
                f"The worker's process cannot be started ({error}): see `whetstone doctor`, then resume the job."
            ) from None
        data = {"host": socket.gethostname(), "pid": pid, "started": started}
        return Handle(launcher=self.name, place=f"process {pid}", data=data)

    def _warm(self, job_id: str, channel: Channel, log: BinaryIO) -> Worker | None:
        if self._template is None or len(job_id) > JOB_WIDTH:
            return None
        return self._template.start(channel.address, (MARK, self._mark(job_id)), log)

    def _cold(self, job_id: str, channel: Channel, log: BinaryIO) -> Worker:
        child = subprocess.Popen(
            [self.python, "-m", "backend.worker", channel.address],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=self._environment(self._mark(job_id)),
        )
        self._children[child.pid] = child
        return Worker(child.pid, processes.started(child.pid))

    def _environment(self, mark: str) -> dict[str, str]:
        return {**os.environ, MARK: mark, "WHETSTONE_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}

    def poll(self, handle: Handle) -> Outcome:
        child = self._children.get(handle.data["pid"])
        if child is not None:
            code = child.poll()
            if code is not None:
                del self._children[child.pid]
            return Outcome(alive=code is None, code=code)
        outcome = (
            self._template.look(Worker(handle.data["pid"], handle.data["started"]))
            if self._template is not None
            else None
        )
        return outcome or Outcome(alive=_process(handle) is not None)

    def cancel(self, handle: Handle, *, force: bool) -> None:
        process = _process(handle)
        if process is not None:
            process.send_signal(signal.SIGKILL if force else signal.SIGTERM)

    def sweep(self, job_id: str, handle: Handle | None) -> None:
        processes.end(processes.marked(MARK, self._mark(job_id)), SWEEP_GRACE_S)

    def sweep_others(self, kept: Collection[str]) -> None:
        own = {self._mark(job_id) for job_id in kept}
        processes.end([each for each, mark in processes.marks(MARK, f"{self.home}:") if mark not in own], SWEEP_GRACE_S)

    def _mark(self, job_id: str) -> str:
        return f"{self.home}:{job_id.ljust(JOB_WIDTH, '.')}"

    def close(self) -> None:
        """End the template, if there is one; its workers go on."""
        if self._template is not None:
            self._template.close()


def _process(handle: Handle) -> psutil.Process | None:
    return processes.running(handle.data["pid"], handle.data["started"])
