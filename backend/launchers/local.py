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

import psutil

from backend import files
from backend.domain.jobs import channel
from backend.domain.jobs.jobs import Event, Handle, Outcome
from backend.launchers.base import Launcher

MARK = "WHETSTONE_JOB"
_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)


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
        started = psutil.Process(child.pid).create_time()
        return Handle(launcher=self.name, host=socket.gethostname(), pid=child.pid, started=started, interpreter=self.python)

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
        return Outcome(alive=_same_process(handle) is not None)

    def cancel(self, handle: Handle, *, force: bool) -> None:
        process = _same_process(handle)
        if process is not None:
            process.send_signal(signal.SIGKILL if force else signal.SIGTERM)

    def sweep(self, job_id: str, handle: Handle | None) -> int:
        left = self._marked(job_id)
        for process in left:
            _signal(process, signal.SIGTERM)
        _, stubborn = psutil.wait_procs(left, timeout=5)
        for process in stubborn:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(stubborn, timeout=10)
        shutil.rmtree(self.folder(job_id) / channel.WORK, ignore_errors=True)
        return len(left)

    def _mark(self, job_id: str) -> str:
        return f"{self.home}:{job_id}"

    def _marked(self, job_id: str) -> list[psutil.Process]:
        mark, found = self._mark(job_id), []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                    found.append(process)
            except _GONE:
                continue
        return found


def _fresh_channel(folder: Path, spec: str) -> None:
    """An earlier attempt's log is kept; its events and result are in the store already."""
    for name in (channel.EVENTS, channel.WORK):
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / channel.RESULT).unlink(missing_ok=True)
    for name in (channel.EVENTS, channel.WORK):
        (folder / name).mkdir(parents=True)
    files.write(folder / channel.SPEC, spec)


def _same_process(handle: Handle) -> psutil.Process | None:
    """The handle's process if it still runs: same pid, same start time, not a zombie."""
    try:
        process = psutil.Process(handle.pid)
        same = abs(process.create_time() - handle.started) < 0.05
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except _GONE:
        return None


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except _GONE:
        return
