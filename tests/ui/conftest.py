"""What the tests of pages share: a home whose supervisor seems to run, with no engine installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.service import Workspace
from tests import studio


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "engines"))
    with studio.home(tmp_path / "home", monkeypatch) as opened:
        studio.supervisor(opened)
        yield opened
