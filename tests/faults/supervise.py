"""A supervisor process of the fault campaign: the real main, forked from one that has imported it, with shorter clocks.

Every clock that a fault must outlast is divided by about ten; what they are to each other stays. It may end itself, or
find its database locked, at a statement that a seed chose.
"""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import event

from backend import launchers, processes
from backend.domain.jobs import endings
from backend.domain.jobs.endings import RetryPolicy
from backend.launchers.cluster import client, follower
from backend.settings import Settings
from backend.store import leases
from backend.store.database import Store, open_store
from backend.supervisor import __main__ as entry
from backend.supervisor import supervisor, uploads

ROOT = Path(__file__).resolve().parents[2]
LEASE_S, HEARTBEAT_S, TICK_S, GRACE_S, PATIENCE_S = 2.0, 0.2, 0.05, 2.0, 0.5
SILENT_S, SOON_SILENT_S = 60.0, 4.0
"""A worker is silent while Python starts, which takes long beside others; where silence is the fault it counts
sooner."""
PLACE_PAUSE_S = 1.0
LOOK_S, GONE_S, AWAY_S, ALONE_S, AGAIN_S = 0.2, 0.5, 9.0, 30.0, 1.0
"""Of an attempt on a cluster (`launchers.cluster.follower`), of which a keeper's must outlast a supervisor that is
paused."""
HEADLESS_S = 6
RAY_CLOCKS = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEADLESS_S),
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "5",
}
"""Ray's own, divided as the studio's are: how long a node lives without its head, and one that does not answer."""
WRITES = ("INSERT", "UPDATE", "DELETE")


@dataclass(frozen=True)
class Start:
    """`database`: an address. `end_at`: the writing statement of its loop before which it is killed; `lock_at`: the one
    at which another program locks the database, for `hold_s`. `boot`: a file with another boot's id, as after a
    restart."""

    home: str
    database: str
    host: str
    end_at: int | None = None
    lock_at: int | None = None
    hold_s: float = 0.0
    boot: str | None = None
    silent_s: float = SILENT_S
    ray: str | None = None
    """The address of the cluster on whose nodes its jobs run; None for this machine."""
    artifacts: str | None = None
    """Where artifacts go: s3://BUCKET/PREFIX; None for the home."""
    bucket_url: str | None = None
    """Who answers for the bucket."""


def supervise(start: Start) -> None:
    """Runs until it is stopped or killed; what it says stands in the home's supervisor.log."""
    log = os.open(Path(start.home) / "supervisor.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.setsid()
    python = str(Path(start.home) / "python")
    os.environ |= {
        "WHETSTONE_HOME": start.home,
        "DATABASE_URL": start.database,
        "WHETSTONE_SILENT_S": str(start.silent_s),
    }
    if start.artifacts is not None:
        os.environ |= {"WHETSTONE_ARTIFACTS": start.artifacts, "AWS_ENDPOINT_URL": str(start.bucket_url)}
    if start.ray is not None:
        os.environ |= {"WHETSTONE_RAY_ADDRESS": start.ray, **RAY_CLOCKS}
    follower.POLL_S, follower.GONE_S, follower.AWAY_S, follower.ALONE_S = LOOK_S, GONE_S, AWAY_S, ALONE_S
    client.AGAIN_S = AGAIN_S
    uploads.PAUSE_S = PLACE_PAUSE_S
    leases.LEASE_SECONDS, leases.STALE_SECONDS = LEASE_S, 4 * HEARTBEAT_S
    entry.HEARTBEAT_SECONDS, entry.TICK_SECONDS, supervisor.GRACE_SECONDS = HEARTBEAT_S, TICK_S, GRACE_S
    endings.POLICIES |= {
        name: RetryPolicy(result.retries, result.first_s / 10) for name, result in endings.POLICIES.items()
    }
    launchers.choose_launcher = lambda settings: launchers.make_worker_launcher(settings, python)
    entry.open_store = lambda settings: _opened(settings, start)  # type: ignore[assignment,misc]
    socket.gethostname = lambda: start.host
    if start.boot is not None:
        processes.BOOT_ID = Path(start.boot)
    sys.argv = ["supervisor"]
    sys.exit(entry.main())


def interpreter(home: Path) -> None:
    """The program that the launcher of that home takes for Python: it runs the campaign's worker on the channel it is
    given. A script, such as the one that stands over workers on a node, it runs
    as it is."""
    home.mkdir(parents=True, exist_ok=True)
    worker = f'PYTHONPATH={ROOT} exec {sys.executable} -m tests.faults.worker "$3"'
    script = f'#!/bin/sh\n[ "$1" = -m ] || exec {sys.executable} "$@"\n{worker}\n'
    (home / "python").write_text(script)
    (home / "python").chmod(0o755)


def _opened(settings: Settings, start: Start) -> Store:
    store = open_store(settings, patience_s=PATIENCE_S)
    if start.end_at is not None:
        _at(store, start.end_at, lambda: os.kill(os.getpid(), signal.SIGKILL))
    if start.lock_at is not None:
        _at(store, start.lock_at, lambda: lock(start.database, start.hold_s))
    return store


def _at(store: Store, number: int, act: Callable[[], Any]) -> None:
    """Before that writing statement of the main thread, counted from 1; the heartbeat's are none of them."""
    left = [number]

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if threading.current_thread() is threading.main_thread() and statement.startswith(WRITES):
            left[0] -= 1
            if left[0] == 0:
                act()

    event.listen(store.engine, "before_cursor_execute", count)


def lock(database: str, hold_s: float) -> threading.Thread:
    """Another program takes the database as soon as it may, and keeps all others from writing for so long."""
    thread = threading.Thread(target=_lock, args=(database, hold_s), daemon=True)
    thread.start()
    return thread


def _lock(database: str, hold_s: float) -> None:
    if not database.startswith("sqlite"):
        with psycopg.connect(database) as other:
            other.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
            time.sleep(hold_s)
        return
    connection = sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None, timeout=10.0)
    connection.execute("BEGIN IMMEDIATE")
    time.sleep(hold_s)
    connection.rollback()
    connection.close()
