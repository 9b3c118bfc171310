"""Ctrl-C and SIGTERM that cannot be lost while a command submits a job and waits for it."""

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
    """While this lasts Ctrl-C and SIGTERM set the event and do nothing else; may be nested, with one event for all.

    Python raises KeyboardInterrupt wherever the main thread is. Within a weakref's callback or a `__del__`, of which a
    database session has many, it is printed as ignored and gone, and between a job's submission and the wait for it it
    would leave the job running. So whoever waits looks at the event, and must not wait for long. Raises
    KeyboardInterrupt at the end of the outermost where the event is set and no other exception says so. A signal that
    the command was started to ignore stays ignored; SIGQUIT (Ctrl-\\) ends the command at once.
    """
    global _noting
    if _noting is not None or threading.current_thread() is not threading.main_thread():
        yield _noting or threading.Event()
        return
    event = SignalEvent()
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    earlier = {number: signal.signal(number, event.note) for number in heard}
    _noting = event
    try:
        yield event
    finally:
        _noting = None
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if event.is_set():
        raise KeyboardInterrupt
