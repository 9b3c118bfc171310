"""A store of each kind that there is: whatever is true of one is to be true of the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.settings import Settings
from backend.store.database import Store, open_store
from tests.homes import open_home
from tests.postgres import Postgres


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.process)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Empty and migrated."""
    if request.param == "sqlite":
        yield open_home(tmp_path).store
        return
    server: Postgres = request.getfixturevalue("postgres")
    url = server.new()
    opened = open_store(Settings(home=tmp_path, database_url=url))
    yield opened
    opened.engine.dispose()
    server.drop(url)
