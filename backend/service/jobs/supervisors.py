"""The supervisor as seen from outside: is one there, and start one that ends by itself when there is nothing left to do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from backend import processes
from backend.domain.errors import WorkError
from backend.service.workspace import Workspace
from backend.store import queue
from backend.store.tables import SupervisorRow

IDLE_SECONDS = 3.0
START_SECONDS = 30.0
RESPAWN_SECONDS = 5.0


class SupervisorFailed(WorkError):
    """The supervisor did not start; its log is supervisor.log in WHETSTONE_HOME."""


def alive(workspace: Workspace) -> bool:
    """Whether a supervisor serves this home: a fresh heartbeat, and the process there where it is on this host."""
    with workspace.store.read() as session:
        row = queue.supervisor_alive(session)
    return row is not None and _process(row) is not None


def ensure(workspace: Workspace) -> None:
    """Start a supervisor where none is; it ends after a few idle seconds. Raises SupervisorFailed."""
    if alive(workspace):
        return
    start(workspace, until_idle=IDLE_SECONDS)


def start(workspace: Workspace, *, until_idle: float | None = None) -> None:
    """Start a supervisor process in a session of its own and wait for its first heartbeat.

    Raises SupervisorFailed, and ReadOnly in a demonstration.
    """
    workspace.check_writable()
    command = [sys.executable, "-m", "backend.supervisor"]
    if until_idle is not None:
        command += ["--until-idle", str(until_idle)]
    environment = {**os.environ, "WHETSTONE_HOME": str(workspace.settings.home)}
    log_path = workspace.settings.home / "supervisor.log"
    deadline, spawned = time.monotonic() + START_SECONDS, 0.0
    while not alive(workspace):
        if time.monotonic() > deadline:
            raise SupervisorFailed(f"The supervisor did not start within {START_SECONDS:.0f} s; see {log_path}.")
        if time.monotonic() - spawned > RESPAWN_SECONDS:  # one that found the home's lock held by a dying one has left
            _spawn(command, environment, log_path)
            spawned = time.monotonic()
        time.sleep(0.1)


def _spawn(command: list[str], environment: dict[str, str], log_path: Path) -> None:
    """Start it as nobody's child: it outlives whoever asked for it, also by a Ctrl-C at once, and leaves no zombie behind."""
    with log_path.open("ab") as log:
        subprocess.run(
            ["setsid", "--fork", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, check=True,
            start_new_session=True,
        )  # fmt: skip


def stop(workspace: Workspace, *, timeout_s: float = 45.0) -> bool:
    """Ask this home's supervisor to stop, which cancels what it runs, and wait; False where there was none."""
    with workspace.store.read() as session:
        row = queue.supervisor_alive(session)
    process = _process(row) if row else None
    if process is None:
        return False
    process.send_signal(signal.SIGTERM)
    _, left = psutil.wait_procs([process], timeout=timeout_s)
    return not left


def _process(row: SupervisorRow) -> psutil.Process | None:
    return processes.running(row.pid, row.process_started)
