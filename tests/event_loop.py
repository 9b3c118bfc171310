"""Runs a coroutine of a test in an event loop of its own.

`asyncio.run` fails where the thread already has a running loop, and the browser that tests of one process share
leaves one running in the main thread. Ruff therefore bans `asyncio.run` in every other module (TID251).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_in_own_loop(work: Callable[[], Coroutine[Any, Any, Result]], timeout_s: float = 300) -> Result:
    """Return what `work()` returns, run to its end in a new thread with a new event loop.

    Raises what `work` raises, and TimeoutError after `timeout_s` seconds.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(work())).result(timeout=timeout_s)  # noqa: TID251
