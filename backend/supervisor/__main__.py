"""`python -m backend.supervisor [--until-idle SECONDS]`: the supervisor process of a home."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
import threading
import time

from backend import processes
from backend import settings as configuration
from backend.domain.errors import WhetstoneError
from backend.store.database import open_store
from backend.store.leases import HEARTBEAT_SECONDS, LOCK
from backend.supervisor.supervisor import Supervisor

TICK_SECONDS = 0.2


def main() -> int:
    """Runs until SIGTERM or SIGINT, or with --until-idle until there was nothing to do for that long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--until-idle", type=float, default=None, metavar="SECONDS")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    settings = configuration.load()
    settings.home.mkdir(parents=True, exist_ok=True)
    with (settings.home / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.info("Another supervisor serves %s already; nothing to do.", settings.home)
            return 0
        lock.truncate(0)
        lock.write(f"{os.getpid()} {processes.started(os.getpid())}")
        lock.flush()
        return _serve(Supervisor(settings, open_store(settings), beside=True), arguments.until_idle)


def _serve(supervisor: Supervisor, until_idle: float | None) -> int:
    stopping = processes.Signalled.by((signal.SIGTERM, signal.SIGINT))
    threading.Thread(target=_beat, args=(supervisor, stopping), daemon=True, name="heartbeat").start()
    supervisor.begin()
    busy_at = time.monotonic()
    while not stopping.is_set():
        if _tick(supervisor):
            busy_at = time.monotonic()
        elif until_idle is not None and time.monotonic() - busy_at > until_idle:
            break
        stopping.wait(TICK_SECONDS)
    stopping.set()
    supervisor.stop()
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
