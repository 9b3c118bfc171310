"""What the tests of supervisors share: a simulated world of workers, and simulated homes on one database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.homes import DATABASE, open_home
from tests.simulated_workers import Home, World


@pytest.fixture
def world() -> World:
    """Return a world in which no worker runs yet."""
    return World()


@pytest.fixture
def make_home(tmp_path: Path, world: World) -> Callable[..., Home]:
    """Return a function that makes simulated homes on one database, on the host `one` where no other is named."""
    open_home(tmp_path)

    def make(name: str, host: str = "one") -> Home:
        return Home(world, tmp_path / name, f"sqlite:///{tmp_path / DATABASE}", host)

    return make


@pytest.fixture
def simulated_home(make_home: Callable[..., Home]) -> Home:
    """Return a home whose supervisor takes a step when a test says `tick`."""
    return make_home("a")
