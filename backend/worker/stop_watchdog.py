"""Ends a worker that is asked to stop while it is inside one long call, such as the factor of a large matrix on a
processor.

Python runs a signal's handler only between two of its own instructions. What such a call leaves behind is what kill -9
leaves: scratch that the supervisor sweeps, and finished layers to go on from. Knows nothing of jobs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

PATIENCE_S = 2.0
"""How long one call may go on after the signal."""
EXIT_CODE = 130


def start_watchdog(patience_s: float = PATIENCE_S) -> Callable[[], None]:
    """From now on SIGTERM ends the process with EXIT_CODE unless its handler has called what is returned within
    `patience_s`.

    To be called in the main thread. The signal's number is written to a pipe by the interpreter itself, at once.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    handled = threading.Event()
    threading.Thread(target=_guard, args=(reading, handled, patience_s), daemon=True, name="stopping").start()
    return handled.set


def _guard(reading: int, handled: threading.Event, patience_s: float) -> None:
    while signal.SIGTERM not in os.read(reading, 64):
        continue
    if not handled.wait(patience_s):
        os._exit(EXIT_CODE)
