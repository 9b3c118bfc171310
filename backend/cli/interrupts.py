"""Ctrl-C and SIGTERM that cannot be lost while a command submits a job and waits for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_noting: threading.Event | None = None


@contextmanager
def noted() -> Iterator[threading.Event]:
    """Set an event at the first Ctrl-C or SIGTERM, raise KeyboardInterrupt at the second; may be nested, with one event for all.

    Python raises KeyboardInterrupt wherever the main thread is. Within a weakref's callback or a `__del__`, of which a
    database session has many, it is printed as ignored and gone, and between a job's submission and the wait for it it
    would leave the job running. So whoever waits looks at the event. Raises KeyboardInterrupt at the end of the outermost
    where it was set and no other exception says so. A signal that the command was started to ignore stays ignored.
    """
    global _noting
    if _noting is not None:
        yield _noting
        return
    event = threading.Event()

    def note(_number: int, _frame: object) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    in_main = threading.current_thread() is threading.main_thread()
    heard = [number for number in SIGNALS if in_main and signal.getsignal(number) is not signal.SIG_IGN]
    earlier = {number: signal.signal(number, note) for number in heard}
    _noting = event
    try:
        yield event
    finally:
        _noting = None
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if event.is_set():
        raise KeyboardInterrupt


def ignore() -> None:
    """From here to the end of `noted` no further signal is heard: what is being cancelled is waited for."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
