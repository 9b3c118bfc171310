"""Workers as processes of this machine: a session of their own each, found again by pid and start time.

A worker outlives the supervisor that started it. Everything a job starts carries WHETSTONE_JOB in its environment, which is
what `sweep` goes by: a process that changed its group or session is still found.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from backend import files, processes
from backend.domain.jobs import channel
from backend.domain.jobs.jobs import Event, Handle, Outcome
from backend.launchers.base import Launcher

MARK = "WHETSTONE_JOB"
SWEEP_GRACE_S = 5.0


class LocalLauncher(Launcher):
    """`jobs` is the folder of job channels, `home` tells two homes' jobs apart in the mark."""

    name = "local"

    def __init__(self, home: Path, python: str = sys.executable) -> None:
        self.home, self.python = home, python
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def folder(self, job_id: str) -> Path:
        return self.home / "jobs" / job_id

    def start(self, job_id: str, spec: str) -> Handle:
        folder = self.folder(job_id)
        _fresh_channel(folder, spec)
        environment = {**os.environ, MARK: self._mark(job_id), "WHETSTONE_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}
        with (folder / channel.LOG).open("ab") as log:
            child = subprocess.Popen(
                [self.python, "-m", "backend.worker", str(folder)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment,
            )  # fmt: skip
        self._children[child.pid] = child
        started = processes.started(child.pid)
        return Handle(launcher=self.name, host=socket.gethostname(), pid=child.pid, started=started)

    def segments(self, job_id: str, after: int) -> list[tuple[int, list[Event]]]:
        found = []
        number = after + 1
        while (path := self.folder(job_id) / channel.EVENTS / channel.segment_name(number)).exists():
            found.append((number, channel.decode(path.read_bytes())))
            number += 1
        return found

    def result(self, job_id: str) -> dict[str, Any] | None:
        path = self.folder(job_id) / channel.RESULT
        if not path.exists():
            return None
        document: dict[str, Any] = json.loads(path.read_bytes())
        return document

    def poll(self, handle: Handle) -> Outcome:
        child = self._children.get(handle.pid)
        if child is not None:
            code = child.poll()
            if code is not None:
                del self._children[handle.pid]
            return Outcome(alive=code is None, code=code)
        return Outcome(alive=processes.running(handle.pid, handle.started) is not None)

    def cancel(self, handle: Handle, *, force: bool) -> None:
        process = processes.running(handle.pid, handle.started)
        if process is not None:
            process.send_signal(signal.SIGKILL if force else signal.SIGTERM)

    def sweep(self, job_id: str, handle: Handle | None) -> int:
        left = processes.marked(MARK, self._mark(job_id))
        processes.end(left, SWEEP_GRACE_S)
        shutil.rmtree(self.folder(job_id) / channel.WORK, ignore_errors=True)
        return len(left)

    def _mark(self, job_id: str) -> str:
        return f"{self.home}:{job_id}"


def _fresh_channel(folder: Path, spec: str) -> None:
    """An earlier attempt's log is kept; its events and result are in the store already."""
    for name in (channel.EVENTS, channel.WORK):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / channel.RESULT).unlink(missing_ok=True)
    for name in (channel.EVENTS, channel.WORK):
        (folder / name).mkdir(parents=True)
    files.write(folder / channel.SPEC, spec)
