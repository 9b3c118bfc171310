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
    """One that takes jobs, or drains; `jobs`: what it has."""

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
    """Whether a supervisor looks after jobs, or with `own` this home's: a fresh heartbeat, and the process where it is
    here."""
    here, home = socket.gethostname(), str(workspace.settings.home)
    with workspace.store.read() as session:
        rows = leases.list_live_supervisors(session)
    return any(
        (row.host != here or processes.find_running(row.pid, row.process_started) is not None)
        and (not own or (row.host, row.home) == (here, home))
        for row in rows
    )


def ensure_running(workspace: Workspace) -> None:
    """Start a supervisor where none is, for whoever may submit; it ends after a few idle seconds. Raises
    SupervisorFailed.

    One that does not answer, since its process is paused or its machine busy, is waited for; so is a person who drained
    it.
    """
    if is_drained(workspace):
        return
    if workspace.refusal(Action.SUBMIT) is None and not is_alive(workspace) and _process(workspace) is None:
        start(workspace, until_idle=IDLE_SECONDS)


def drain(workspace: Workspace) -> None:
    """Have this home's supervisor take no new jobs and end with its last; nobody but a person starts another. Raises
    NotNow."""
    here, home = socket.gethostname(), str(workspace.settings.home)
    if not workspace.change(Action.DRAIN, home, lambda session: leases.drain(session, here, home)):
        raise NotNow("No supervisor of this home is running: there is nothing to drain.")


def is_drained(workspace: Workspace) -> bool:
    """Whether a person drained the supervisor of this home and nobody has started one since."""
    with workspace.store.read() as session:
        latest = leases.latest_supervisor(session, socket.gethostname(), str(workspace.settings.home))
    return latest is not None and latest.draining


def listing(workspace: Workspace) -> list[SupervisorView]:
    """Those that are heard of, on all hosts that share the database."""
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
    command = [sys.executable, "-m", "backend.supervisor"]
    if until_idle is not None:
        command += ["--until-idle", str(until_idle)]
    if workspace.settings.metrics_port is not None:
        command += ["--metrics-port", str(workspace.settings.metrics_port)]
    environment = {**os.environ, "WHETSTONE_HOME": str(workspace.settings.home)}
    if workspace.settings.database_url:
        environment["DATABASE_URL"] = workspace.settings.database_url
    log_path = workspace.settings.home / "supervisor.log"
    deadline, spawned = time.monotonic() + START_SECONDS, 0.0
    while not is_alive(workspace, own=True):
        if time.monotonic() > deadline:
            raise SupervisorFailed(f"The supervisor did not start within {START_SECONDS:.0f} s; see {log_path}.")
        if time.monotonic() - spawned > RESPAWN_SECONDS:  # one that found the home's lock held by a dying one has left
            _spawn(command, environment, log_path)
            spawned = time.monotonic()
        time.sleep(0.1)


PRIVATE = 0o077
"""Logs and what jobs write are for their owner."""


def _spawn(command: list[str], environment: dict[str, str], log_path: Path) -> None:
    """Start it as nobody's child: it outlives whoever asked for it, also by a Ctrl-C at once, and leaves no zombie
    behind."""
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
    """Ask this home's supervisor to stop and wait; False where there was none. Its workers go on, and the next one has
    them."""
    process = _process(workspace)
    if process is None:
        return False
    process.send_signal(signal.SIGTERM)
    return not processes.wait_for_end([process], timeout_s)


def _process(workspace: Workspace) -> psutil.Process | None:
    """This home's supervisor, by the file that it holds locked."""
    try:
        pid, start = (workspace.settings.home / leases.LOCK).read_text().split()
    except (OSError, ValueError):
        return None
    return processes.find_running(int(pid), start)
