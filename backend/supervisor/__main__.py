"""`python -m backend.supervisor [--until-idle SECONDS] [--metrics-port PORT]`: the supervisor process of a home."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from backend import logs, processes
from backend import settings as configuration
from backend.domain.errors import WhetstoneError
from backend.settings import Settings
from backend.store.database import Change, StateChanged, open_store
from backend.store.leases import HEARTBEAT_SECONDS, LOCK
from backend.supervisor.job_log import JobLog
from backend.supervisor.supervisor import Supervisor

TICK_SECONDS, SOON_SECONDS = 0.2, 0.01
LOG = "supervisor.log"


def main() -> int:
    """Runs until SIGTERM or SIGINT; drained, until it has no job; with --until-idle, until there was nothing to do so
    long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until-idle", type=float, default=None, metavar="SECONDS")
    parser.add_argument(
        "--metrics-port", type=int, default=None, help="else WHETSTONE_METRICS_PORT; 0 and none: no metrics"
    )
    arguments = parser.parse_args()
    settings = configuration.load()
    settings.home.mkdir(parents=True, exist_ok=True)
    logs.start_logging(settings.home / LOG)
    with (settings.home / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logs.log_event("left", f"Another supervisor serves {settings.home} already; nothing to do.")
            return 0
        lock.truncate(0)
        lock.write(f"{os.getpid()} {processes.start_stamp(os.getpid())}")
        lock.flush()
        supervisor = Supervisor(settings, open_store(settings), beside=True)
        pace = Pace()
        port = settings.metrics_port if arguments.metrics_port is None else arguments.metrics_port
        _watch(supervisor, settings, port, pace)
        return _serve(supervisor, arguments.until_idle, pace)


class Pace:
    """A round in which a job changed its state is followed by the next at once, since another may start or end now;
    then pauses double from SOON_SECONDS to TICK_SECONDS, since a job that was just started may end soon."""

    def __init__(self) -> None:
        self._moved, self._pause = False, TICK_SECONDS

    def seen(self, change: Change) -> None:
        self._moved = self._moved or isinstance(change, StateChanged)

    def pause(self) -> float:
        """Seconds to rest after the round that just ended."""
        moved, self._moved = self._moved, False
        self._pause = 0.0 if moved else min(TICK_SECONDS, max(SOON_SECONDS, 2 * self._pause))
        return self._pause


def _watch(supervisor: Supervisor, settings: Settings, port: int | None, pace: Pace) -> None:
    """Every committed change is a line of the log, sets the pace, and with a port is a figure."""
    seen: list[Callable[[Change], None]] = [JobLog().observe, pace.seen]
    if port:
        from backend.supervisor.metrics import Metrics

        metrics = Metrics(supervisor)
        metrics.serve(settings.metrics_host, port)
        seen.append(metrics.seen)

    def watch(change: Change) -> None:
        for each in seen:
            each(change)

    supervisor.store.watch = watch


def _serve(supervisor: Supervisor, until_idle: float | None, pace: Pace) -> int:
    stopping = processes.SignalEvent.handle((signal.SIGTERM, signal.SIGINT))
    threading.Thread(target=_beat, args=(supervisor, stopping), daemon=True, name="heartbeat").start()
    supervisor.begin()
    logs.log_event("started", f"Supervisor {supervisor.row.id} of {supervisor.settings.home} has started.")
    busy_at = time.monotonic()
    while not stopping.is_set():
        if _tick(supervisor):
            busy_at = time.monotonic()
        elif supervisor.draining or (until_idle is not None and time.monotonic() - busy_at > until_idle):
            break
        stopping.wait(pace.pause())
    stopping.set()
    supervisor.stop()
    logs.log_event("stopped", "The supervisor has stopped; workers that run go on.")
    return 0


def _beat(supervisor: Supervisor, stopping: threading.Event) -> None:
    """In a thread of its own: a round may take long. The last word, that this one has stopped, is not this thread's."""
    while not stopping.wait(HEARTBEAT_SECONDS):
        try:
            supervisor.beat()
        except WhetstoneError as error:
            logging.error("%s", error)


def _tick(supervisor: Supervisor) -> bool:
    """A round that fails (a locked database, a full disk) is told in the log and tried again: jobs must not be lost."""
    try:
        return supervisor.tick()
    except (WhetstoneError, OSError) as error:
        logging.error("%s", error)
        return True


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)  # an upload that is under way is not waited for: the next supervisor goes on with it
