"""A home that is opened again in one process, as pages and tests do, keeps the locks on its database."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from backend.store import home as homes
from backend.store.database import StoreUnavailable, open_store
from tests.homes import open_home

WRITE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as database:
    database.execute("UPDATE meta_of_the_test SET value = value + 1")
database.close()
"""


@pytest.mark.process
def test_opened_again_a_home_sees_what_others_write(tmp_path: Path) -> None:
    """Another process that closes the database last takes its log away: only this one's lock keeps it from being the
    last."""
    opened = open_home(tmp_path / "home")
    database = opened.settings.home / homes.DATABASE
    with opened.store.engine.connect() as connection:
        connection.execute(text("CREATE TABLE meta_of_the_test (value INTEGER)"))
        connection.execute(text("INSERT INTO meta_of_the_test VALUES (0)"))
        connection.commit()
        homes.prepare(opened.settings)
        for count in (1, 2, 3):
            subprocess.run([sys.executable, "-c", WRITE, str(database)], check=True)
            assert connection.execute(text("SELECT value FROM meta_of_the_test")).scalar() == count
            connection.commit()
            assert database.with_name(f"{homes.DATABASE}-wal").exists()


@pytest.mark.parametrize(("version", "age"), [("0007", "older"), ("9999", "newer"), ("0008x", "older")])
def test_a_database_of_a_schema_that_is_not_known_is_refused_in_a_sentence(
    tmp_path: Path, version: str, age: str
) -> None:
    opened = open_home(tmp_path / "home")
    with opened.store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})
    opened.store.engine.dispose()
    with pytest.raises(StoreUnavailable) as refused:
        open_store(opened.settings)
    assert f"is of a{'n' * (age == 'older')} {age} Whetstone (schema {version})" in str(
        refused.value
    ) and "\n" not in str(refused.value)
