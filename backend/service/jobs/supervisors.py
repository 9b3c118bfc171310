"""The supervisor as seen from outside: is one there, and start one that ends by itself when there is nothing left to
do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from backend import processes
from backend.domain.errors import NotNow, ReadOnly, WorkError
from backend.domain.frozen import Frozen
from backend.domain.roles import Action
from backend.service.workspace import Workspace
from backend.store import leases

IDLE_SECONDS = 3.0
START_SECONDS = 30.0
RESPAWN_SECONDS = 5.0


class SupervisorView(Frozen):
    """A supervisor that takes jobs or drains, and its number of jobs."""

    id: str
    host: str
    home: str
    pid: int
    draining: bool
    jobs: tuple[str, ...]


SHOWN_FIELDS = ("id", "host", "home", "pid", "draining")


class SupervisorFailed(WorkError):
    """The supervisor did not start; its log is supervisor.log in WHETSTONE_HOME."""


def is_alive(workspace: Workspace, *, own: bool = False) -> bool:
    """Tell whether a supervisor runs, or with `own` this home's: it has a fresh heartbeat and, on this host, a
    process."""
    here, home = socket.gethostname(), str(workspace.settings.home)
    with workspace.store.read() as session:
        rows = leases.list_live_supervisors(session)
    return any(
        (row.host != here or processes.find_running(row.pid, row.process_started) is not None)
        and (not own or (row.host, row.home) == (here, home))
        for row in rows
    )


def ensure_running(workspace: Workspace) -> None:
    """Start a supervisor if none runs and the actor may submit; it ends after a few idle seconds. Raises
    SupervisorFailed.

    One that does not answer, since its process is paused or its machine busy, is waited for; so is a person who drained
    it. One that is just ending is followed by the next.
    """
    if is_drained(workspace):
        return
    if workspace.refusal(Action.SUBMIT) is not None or is_alive(workspace):
        return
    process = _process(workspace)
    if process is not None and _has_stopped(workspace, process):
        processes.wait_for_end([process], START_SECONDS)
        process = None
    if process is None:
        start(workspace, until_idle=IDLE_SECONDS)


def drain(workspace: Workspace) -> None:
    """Make this home's supervisor take no new jobs and end after its last; only a person starts another. Raises
    NotNow."""
    here, home = socket.gethostname(), str(workspace.settings.home)
    if not workspace.change(Action.DRAIN, home, lambda session: leases.drain(session, here, home)):
        raise NotNow("No supervisor of this home is running: there is nothing to drain.")


def is_drained(workspace: Workspace) -> bool:
    """Tell whether a person drained this home's supervisor and nobody has started one since."""
    with workspace.store.read() as session:
        latest = leases.latest_supervisor(session, socket.gethostname(), str(workspace.settings.home))
    return latest is not None and latest.draining


def _has_stopped(workspace: Workspace, process: psutil.Process) -> bool:
    """Tell whether that process, which runs still, wrote down that it ends."""
    with workspace.store.read() as session:
        latest = leases.latest_supervisor(session, socket.gethostname(), str(workspace.settings.home))
    return latest is not None and latest.stopped and latest.pid == process.pid


def listing(workspace: Workspace) -> list[SupervisorView]:
    """Return the supervisors with a fresh heartbeat, on all hosts that share the database."""
    with workspace.store.read() as session:
        jobs_by_supervisor = leases.list_jobs_by_supervisor(session)
        rows = leases.list_live_supervisors(session)
        return [
            SupervisorView(
                **{name: getattr(row, name) for name in SHOWN_FIELDS}, jobs=jobs_by_supervisor.get(row.id, ())
            )
            for row in rows
        ]


def start(workspace: Workspace, *, until_idle: float | None = None) -> None:
    """Start this home's supervisor in a session of its own, if it does not run, and wait for its first heartbeat.

    Raises SupervisorFailed, and ReadOnly in a demonstration.
    """
    if workspace.read_only:
        raise ReadOnly
    # 1. Build the command and its environment.
    command = [sys.executable, "-m", "backend.supervisor"]
    if until_idle is not None:
        command += ["--until-idle", str(until_idle)]
    if workspace.settings.metrics_port is not None:
        command += ["--metrics-port", str(workspace.settings.metrics_port)]
    environment = {**os.environ, "WHETSTONE_HOME": str(workspace.settings.home)}
    if workspace.settings.database_url:
        environment["DATABASE_URL"] = workspace.settings.database_url
    log_path = workspace.settings.home / "supervisor.log"
    # 2. Start it, again if a dying one held the lock, until it has a heartbeat.
    deadline, spawned = time.monotonic() + START_SECONDS, 0.0
    while not is_alive(workspace, own=True):
        if time.monotonic() > deadline:
            raise SupervisorFailed(f"The supervisor did not start within {START_SECONDS:.0f} s; see {log_path}.")
        if time.monotonic() - spawned > RESPAWN_SECONDS:  # one that found the home's lock held by a dying one has left
            _spawn(command, environment, log_path)
            spawned = time.monotonic()
        time.sleep(0.1)


PRIVATE = 0o077
"""Umask: logs and files of jobs are private to their owner."""


def _spawn(command: list[str], environment: dict[str, str], log_path: Path) -> None:
    """Start the supervisor detached: it survives its caller, also a Ctrl-C right away, and leaves no zombie."""
    log_path.touch(0o600)
    with log_path.open("ab") as log:
        subprocess.run(
            ["setsid", "--fork", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            check=True,
            start_new_session=True,
            umask=PRIVATE,
        )


def stop(workspace: Workspace, *, timeout_s: float = 45.0) -> bool:
    """Stop this home's supervisor and wait. Returns False if none ran. Its workers go on, and the next supervisor
    adopts them."""
    process = _process(workspace)
    if process is None:
        return False
    processes.send_signal([process], signal.SIGTERM)
    return not processes.wait_for_end([process], timeout_s)


def _process(workspace: Workspace) -> psutil.Process | None:
    """Return this home's supervisor process, read from its lock file; None if none runs."""
    try:
        pid, start = (workspace.settings.home / leases.LOCK).read_text().split()
    except (OSError, ValueError):
        return None
    return processes.find_running(int(pid), start)
