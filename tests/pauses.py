"""Pauses that take no time in the test's own thread; those of other threads, such as a keeper that other tests left,
stay."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest


def skip(monkeypatch: pytest.MonkeyPatch, instead: Callable[[float], object] = lambda seconds: None) -> None:
    own, sleep = threading.current_thread(), time.sleep
    monkeypatch.setattr(time, "sleep", lambda s: instead(s) if threading.current_thread() is own else sleep(s))
