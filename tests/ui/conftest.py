"""What the tests of pages share: a home whose supervisor seems to run, with no engine installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.service import Workspace
from backend.store import leases
from tests import studio


@pytest.fixture
def studio_home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """Yield the home that pages open, in `tmp_path / "home"`.

    Its supervisor seems to run unless a test is marked `without_supervisor`, and no engine is installed unless it is
    marked `with_engines`.
    """
    if request.node.get_closest_marker("with_engines") is None:
        monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "engines"))
    monkeypatch.setattr(leases, "STALE_SECONDS", 3600.0)  # nobody renews the heartbeats that a test writes
    with studio.home(tmp_path / "home", monkeypatch) as opened:
        if request.node.get_closest_marker("without_supervisor") is None:
            studio.supervisor(opened)
        yield opened
