"""Defers Ctrl-C and SIGTERM, so that they are not lost while a command submits a job and waits for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from backend.processes import SignalEvent

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_noting: threading.Event | None = None


@contextmanager
def defer_interrupts() -> Iterator[threading.Event]:
    """Make Ctrl-C and SIGTERM only set the yielded event; may be nested, with one event for all.

    Python raises KeyboardInterrupt wherever the main thread is. Inside a weakref callback or a `__del__`, which
    database sessions have, it would be printed and lost; between a job's submission and its wait it would leave the job
    running.
    Callers therefore check the event and never wait for long. At the end of the outermost block, KeyboardInterrupt is
    raised if the event is set and no other exception is raised. A signal that was ignored before stays ignored; SIGQUIT
    (Ctrl-\\) ends the command at once.
    """
    global _noting
    # 1. Share the event of an outer block.
    if _noting is not None or threading.current_thread() is not threading.main_thread():
        yield _noting or threading.Event()
        return
    # 2. Replace the signal handlers.
    event = SignalEvent()
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    earlier = {number: signal.signal(number, event.note) for number in heard}
    _noting = event
    try:
        yield event
    finally:
        _noting = None
        # 3. Restore the handlers, then raise what was deferred.
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if event.is_set():
        raise KeyboardInterrupt
