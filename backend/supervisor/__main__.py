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
from backend.domain.jobs.jobs import JobState
from backend.settings import Settings
from backend.store.database import Change, EventsAppended, StateChanged, open_store
from backend.store.leases import HEARTBEAT_SECONDS, LOCK
from backend.supervisor.supervisor import Supervisor

TICK_SECONDS, SOON_SECONDS = 0.2, 0.01
LOG = "supervisor.log"
LEVELS = {JobState.FAILED: logging.ERROR, JobState.LOST: logging.WARNING}
EVENT_LEVELS = {"warning": logging.WARNING, "error": logging.ERROR}


def main() -> int:
    """Run until SIGTERM or SIGINT, until it is drained and has no job, or until it was idle long enough."""
    # 1. Read options and settings.
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until-idle", type=float, default=None, metavar="SECONDS")
    parser.add_argument(
        "--metrics-port", type=int, default=None, help="else WHETSTONE_METRICS_PORT; 0 and none: no metrics"
    )
    arguments = parser.parse_args()
    settings = configuration.load()
    settings.home.mkdir(parents=True, exist_ok=True)
    logs.start_logging(settings.home / LOG)

    # 2. Take the home's lock: one supervisor per home.
    with (settings.home / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logs.log_event("left", f"Another supervisor serves {settings.home} already; nothing to do.")
            return 0
        lock.truncate(0)
        lock.write(f"{os.getpid()} {processes.start_stamp(os.getpid())}")
        lock.flush()

        # 3. Run jobs.
        supervisor = Supervisor(settings, open_store(settings), background_uploads=True)
        pace = Pace()
        port = settings.metrics_port if arguments.metrics_port is None else arguments.metrics_port
        _observe_store(supervisor, settings, port, pace)
        return _run(supervisor, arguments.until_idle, pace)


class Pace:
    """Decides how long to pause between two rounds.

    A round in which a job changed its state is followed by the next at once, since another job may start or end now.
    After that pauses double from SOON_SECONDS to TICK_SECONDS, since a job that was just started may end soon.
    """

    def __init__(self) -> None:
        self._state_changed, self._pause = False, TICK_SECONDS

    def observe(self, change: Change) -> None:
        self._state_changed = self._state_changed or isinstance(change, StateChanged)

    def pause(self) -> float:
        """Return the seconds to pause after the round that just ended."""
        if self._state_changed:
            self._pause = 0.0
        else:
            self._pause = min(TICK_SECONDS, max(SOON_SECONDS, 2 * self._pause))
        self._state_changed = False
        return self._pause


class JobLog:
    """Writes one line to the log for each committed change of a job's state, and for what workers warn of."""

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}

    def observe(self, change: Change) -> None:
        if isinstance(change, StateChanged):
            self._attempts[change.job] = change.attempt
            message = change.error or f"Job {change.job} is {change.state}."
            level = LEVELS.get(change.state, logging.INFO)
            logs.log_event(change.state, message, job=change.job, attempt=change.attempt, level=level)
        elif isinstance(change, EventsAppended):
            for event in change.events:
                if event.kind in EVENT_LEVELS and event.message:
                    attempt, level = self._attempts.get(change.job), EVENT_LEVELS[event.kind]
                    logs.log_event(event.kind, event.message, job=change.job, attempt=attempt, level=level)


def _observe_store(supervisor: Supervisor, settings: Settings, port: int | None, pace: Pace) -> None:
    """Have every committed change logged, set the pace, and with a port be counted for Prometheus."""
    observers: list[Callable[[Change], None]] = [JobLog().observe, pace.observe]
    if port:
        from backend.supervisor.metrics import Metrics

        metrics = Metrics(supervisor)
        metrics.serve(settings.metrics_host, port)
        observers.append(metrics.observe)

    def notify(change: Change) -> None:
        for observe in observers:
            observe(change)

    supervisor.store.watch = notify


def _run(supervisor: Supervisor, until_idle: float | None, pace: Pace) -> int:
    """Do rounds until the process is to end. Return its exit code."""
    # 1. Begin.
    stopping = processes.SignalEvent.handle((signal.SIGTERM, signal.SIGINT))
    threading.Thread(target=_beat, args=(supervisor, stopping), daemon=True, name="heartbeat").start()
    supervisor.begin()
    logs.log_event("started", f"Supervisor {supervisor.row.id} of {supervisor.settings.home} has started.")

    # 2. Do rounds.
    busy_s = time.monotonic()
    while not stopping.is_set():
        if _tick(supervisor):
            busy_s = time.monotonic()
        elif supervisor.draining or (until_idle is not None and time.monotonic() - busy_s > until_idle):
            if supervisor.draining or _rest(supervisor):
                break
            busy_s = time.monotonic()
        stopping.wait(pace.pause())

    # 3. Hand over.
    stopping.set()
    supervisor.stop()
    logs.log_event("stopped", "The supervisor has stopped; workers that run go on.")
    return 0


def _beat(supervisor: Supervisor, stopping: threading.Event) -> None:
    """Renew the leases until the supervisor stops; runs in a thread of its own, since a round may take long."""
    while not stopping.wait(HEARTBEAT_SECONDS):
        try:
            supervisor.beat()
        except WhetstoneError as error:
            logging.error("%s", error)


def _rest(supervisor: Supervisor) -> bool:
    """Tell whether it may end: nothing was submitted meanwhile, and that it ends is written down."""
    try:
        return supervisor.rest()
    except (WhetstoneError, OSError) as error:
        logging.error("%s", error)
        return False


def _tick(supervisor: Supervisor) -> bool:
    """Do one round. A round that fails (a locked database, a full disk) is logged and tried again."""
    try:
        return supervisor.tick()
    except (WhetstoneError, OSError) as error:
        logging.error("%s", error)
        return True


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # does not wait for an upload: the next supervisor continues it
