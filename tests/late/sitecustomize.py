"""Makes every process but pytest's own late at random, before and after each thing that another process can see.

A busy machine stops any process for a while at any place, and a test that reads what another process writes a moment
later fails there once in hundreds of runs. `make late` has such moments all the time (docs/decisions/0075).

Python imports this module by its name at its start, where its folder is in PYTHONPATH. LATE_S are the most seconds of a
pause; LATE_SHARE is how often there is one, by default in 15 of 100 places.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import os
import random
import sys
import time
from collections.abc import Sequence
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

MOST_S = float(os.environ.get("LATE_S", "0"))
SHARE = float(os.environ.get("LATE_SHARE", "0.15"))
SEEN_BY_OTHERS = ("replace", "rename", "link", "kill", "killpg")
"""Functions of `os` whose effect another process can see."""
METHODS = {
    "sqlalchemy.engine.default": ("DefaultDialect", "do_commit"),
    "backend.gateway.gateway": ("Gateway", "record"),
    "backend.gateway.held.held_gateway": ("HeldGateway", "record"),
    "backend.gateway.passing": ("PassedRoute", "_exchange"),
}
"""Methods by their module: what they write, or what they do after an answer, can be read by another process."""
_moments = random.Random(os.getpid())


def pause_s() -> float:
    return _moments.random() * MOST_S if _moments.random() < SHARE else 0.0


def make_late(owner: Any, name: str) -> None:
    """Put a pause before and after that function."""
    function = getattr(owner, name)

    @wraps(function)
    def late(*args: Any, **kwargs: Any) -> Any:
        time.sleep(pause_s())
        try:
            return function(*args, **kwargs)
        finally:
            time.sleep(pause_s())

    @wraps(function)
    async def late_task(*args: Any, **kwargs: Any) -> Any:
        try:
            return await function(*args, **kwargs)
        finally:
            await asyncio.sleep(pause_s())

    setattr(owner, name, late_task if asyncio.iscoroutinefunction(function) else late)


class LateModules(importlib.abc.MetaPathFinder):
    """Makes the methods of METHODS late once their module is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname in METHODS else None
        if spec is None or spec.loader is None:
            return None
        execute, (owner, name) = spec.loader.exec_module, METHODS[fullname]

        def execute_late(module: ModuleType) -> None:
            execute(module)
            make_late(getattr(module, owner), name)

        spec.loader.exec_module = execute_late  # type: ignore[method-assign]
        return spec


def is_pytest() -> bool:
    """Tell whether this is pytest itself, or a process of its own that runs tests (xdist's execnet)."""
    command = Path("/proc/self/cmdline").read_bytes()
    return b"pytest" in command or b"sys.stdin.readline" in command


if MOST_S and not is_pytest():
    for function_name in SEEN_BY_OTHERS:
        make_late(os, function_name)
    sys.meta_path.insert(0, LateModules())
