"""Opens the store: engine, migrations, short sessions. SQLite in WAL mode, or PostgreSQL by DATABASE_URL."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlmodel import Session

from backend.domain.errors import WorkError
from backend.settings import Settings

HEAD = "0004"
"""Newest migration; a test holds it equal to Alembic's own head."""

MIGRATIONS = Path(__file__).parent / "migrations"


class StoreUnavailable(WorkError):
    """The database cannot be opened or is locked; another program may hold it. Try again, or run `whetstone doctor`."""


class Store:
    """One engine; a session a call."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def session(self) -> AbstractContextManager[Session]:
        """A short write transaction: committed at the end, rolled back on any error."""
        return self._transaction(self.engine)

    def read(self) -> AbstractContextManager[Session]:
        """A short read transaction, which never waits for a writer."""
        return self._transaction(self.engine.execution_options(writes=False))

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Session]:
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                yield session
        except OperationalError as error:
            raise StoreUnavailable(f"The database did not answer ({error.orig}); try again.") from error


def open_store(settings: Settings) -> Store:
    """Open, and migrate to the newest schema where needed.

    Raises StoreUnavailable where the file is no database, the server is away, or the schema is newer than this version.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    engine = _engine(settings.url)
    try:
        with _migration_lock(settings.home):
            _migrate(engine, settings.url)
    except DatabaseError as error:
        raise StoreUnavailable(f"The database at {engine.url.render_as_string()} cannot be opened: {error.orig}.") from error
    return Store(engine)


def _engine(url: str) -> Engine:
    engine = create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
    if url.startswith("sqlite"):
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_immediate)
    return engine


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's own BEGIN below, so that writers queue instead of failing half-way
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=15000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes", True) else "BEGIN")


@contextmanager
def _migration_lock(home: Path) -> Iterator[None]:
    """Two processes that open a new home at once must not both migrate it."""
    with (home / "migrate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _migrate(engine: Engine, url: str) -> None:
    with engine.connect() as connection:
        if inspect(connection).has_table("alembic_version"):
            version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
            if version == HEAD:
                return
            if version is not None and version > HEAD:
                raise StoreUnavailable(f"The database is of a newer Whetstone (schema {version}): update this checkout.")
    from alembic import command

    command.upgrade(alembic_config(url), "head")


def alembic_config(url: str) -> Any:
    """The configuration Alembic's own commands take (`alembic` needs no ini file here)."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = url
    return config
