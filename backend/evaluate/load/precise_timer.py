"""Wakes an event loop at an absolute moment of the monotonic clock, precise to a fraction of a millisecond on Linux.

The timers of uvloop are rounded to whole milliseconds, which would be most of the error of a latency that counts from
the intended start. Linux's timerfd (timerfd_create(2)) is exact and costs no spinning; elsewhere the loop's own timer
is used.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter

CLOCK_MONOTONIC = 1
NON_BLOCKING = 0o4000
ABSOLUTE = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class PreciseTimer:
    """Calls `ring` in the loop at the moment given to `set`, never before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop, self._ring = loop, ring
        self._system = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
        self._file = self._system.timerfd_create(CLOCK_MONOTONIC, NON_BLOCKING) if self._system else -1
        self._timer: asyncio.TimerHandle | None = None
        if self._file >= 0:
            loop.add_reader(self._file, self._on_timer)

    def set(self, moment: float) -> None:
        """Set the next moment, in seconds of `perf_counter`, which on Linux is CLOCK_MONOTONIC."""
        if self._file < 0 or self._system is None:
            self._timer = self._loop.call_at(self._loop.time() + max(0.0, moment - perf_counter()), self._check, moment)
            return
        whole = max(1, int(moment * 1e9))  # 0 would switch it off
        setting = _Setting(_Timespec(0, 0), _Timespec(whole // 10**9, whole % 10**9 + 1))
        if setting.value.nanoseconds >= 10**9:
            setting.value = _Timespec(setting.value.seconds + 1, 0)
        self._system.timerfd_settime(self._file, ABSOLUTE, ctypes.byref(setting), None)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _on_timer(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._file, 8)
            self._ring()

    def _check(self, moment: float) -> None:
        """Ring if the moment has come, else wait again: a timer that is rounded down fires too early."""
        if perf_counter() < moment:
            self.set(moment)
        else:
            self._ring()
