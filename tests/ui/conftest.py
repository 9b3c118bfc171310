"""What the tests of pages share: a home whose supervisor seems to run, with no engine installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.service import Workspace
from tests import studio


@pytest.fixture
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """Yield a studio's home in `tmp_path / "home"`; no supervisor runs where a test is marked `without_supervisor`."""
    monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "engines"))
    with studio.home(tmp_path / "home", monkeypatch) as opened:
        if request.node.get_closest_marker("without_supervisor") is None:
            studio.supervisor(opened)
        yield opened
