"""Ends a worker that is told to stop during one long call, such as factoring a large matrix on a processor.

Python runs a signal's handler only between two of its own instructions. Ending the process then leaves what kill -9
leaves: scratch that the supervisor removes, and finished layers to resume from. Knows nothing of jobs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

PATIENCE_S = 2.0
"""Seconds that one call may continue after the signal."""
EXIT_CODE = 130


def start_watchdog(patience_s: float = PATIENCE_S) -> Callable[[], None]:
    """Start a thread that ends the process with EXIT_CODE `patience_s` after SIGTERM.

    Returns the function by which the signal's handler prevents that. Call it in the main thread. The interpreter itself
    writes the signal's number to a pipe, at once.
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
