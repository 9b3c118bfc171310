"""Opens the store: engine, migrations, short sessions. SQLite in WAL mode, or PostgreSQL by DATABASE_URL."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import URL, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlmodel import Session

from backend.domain.errors import WorkError
from backend.domain.jobs.jobs import Event, JobState
from backend.settings import Settings
from backend.store import home

T = TypeVar("T")
HEAD = "0012"
"""Newest migration; a test holds it equal to Alembic's own head."""

MIGRATIONS = Path(__file__).parent / "migrations"
_ALEMBIC = threading.Lock()
"""Alembic keeps what it migrates in one place a process, whatever the database."""
MIGRATING = 0x57484554
"""The key of PostgreSQL's advisory lock."""
RETRIES_S = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0)
TRANSIENT_CODES = ("40001", "40P01", "57P0", "08")
"""SQLSTATEs: serialization failure, deadlock, the server is shutting down or starting, connection exceptions."""
PATIENCE_S = 15.0
"""Seconds that a write waits for another to end before it gives up. Waiting is better than losing an event."""


CHANGES = "changes"


class StateChanged(NamedTuple):
    """A job has another state. `after_s`: by the database's clock, since it was claimed, or submitted for one that now
    is."""

    job: str
    attempt: int
    kind: str
    state: JobState
    after_s: float | None
    error: str | None = None


class EventsAppended(NamedTuple):
    """Events of a job were stored."""

    job: str
    events: Sequence[Event]


class LeasesRenewed(NamedTuple):
    """So many leases were renewed."""

    leases: int


Change = StateChanged | EventsAppended | LeasesRenewed


def note(session: Session, change: Change) -> None:
    """Note a change of a job or lease for `Store.watch`. It is passed on once the transaction is committed; a change
    that was rolled back is not, and one that is done again is passed on once."""
    session.info.setdefault(CHANGES, []).append(change)


class StoreUnavailable(WorkError):
    """The database cannot be opened or is locked; another program may hold it. Try again, or run `whetstone doctor`."""


class Store:
    """A database engine; each call has a session of its own. `watch` gets each committed change; `retries` counts
    transactions that `run` repeated."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.retries = engine, 0
        self.watch: Callable[[Change], None] = lambda _: None

    def session(self) -> AbstractContextManager[Session]:
        """A short write transaction: committed at the end, rolled back on any error."""
        return self._transaction(self.engine)

    def upkeep(self) -> AbstractContextManager[Session]:
        """A write of Whetstone's own, such as the catalog made anew from its files: a home that can only be read allows
        it."""
        return self._transaction(self.engine)

    def read(self) -> AbstractContextManager[Session]:
        """A short read transaction, which never waits for a writer."""
        return self._transaction(self.engine.execution_options(writes=False))

    def snapshot(self) -> AbstractContextManager[Session]:
        """A read transaction in which all is as it was at its first statement, however long it takes and whoever
        writes."""
        options: dict[str, Any] = {} if self.engine.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
        return self._transaction(self.engine.execution_options(writes=False, **options))

    def run(self, work: Callable[[Session], T]) -> T:
        """`work` in a short write transaction, from its start again where the database ended that for no fault of its
        own: a serialization failure, a deadlock, a connection that was dropped, a restart. Whether a commit went
        through before a connection was dropped is not known, so `work` must do no harm when it is done twice.
        """
        for pause in RETRIES_S:
            try:
                with self.session() as session:
                    return work(session)
            except StoreUnavailable as error:
                if not _is_transient(error.__cause__):
                    raise
                self.retries += 1
                time.sleep(pause)
        with self.session() as session:
            return work(session)

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Session]:
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                yield session
            for change in session.info.pop(CHANGES, []):
                self.watch(change)
        except (OperationalError, InterfaceError, InternalError) as error:
            raise StoreUnavailable(_sentence(error)) from error
        except DatabaseError as error:
            if type(error) is not DatabaseError:  # a statement's own fault
                raise
            raise StoreUnavailable(_sentence(error)) from error  # the file is no database any more


def _is_transient(error: BaseException | None) -> bool:
    """Return whether the same transaction may well succeed in a moment."""
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", "")  # None where psycopg could not connect; sqlite3 has none
    return error.connection_invalidated or state is None or state.startswith(TRANSIENT_CODES)


def _sentence(error: DBAPIError) -> str:
    if "locked" in str(error.orig):
        return (
            "The database is locked by another program, so nothing was read or changed: try again when that has ended."
        )
    return f"The database did not answer ({str(error.orig).splitlines()[0]}); try again."


def open_store(settings: Settings, *, patience_s: float = PATIENCE_S) -> Store:
    """Open, and migrate to the newest schema where needed. `patience_s`: seconds that a write waits for another's.

    Raises StoreUnavailable where the file is no database or locked, the server is away, or the schema is newer or too
    old; HomeUnusable where the folder cannot be written or DATABASE_URL is no address.
    """
    url = home.prepare(settings)
    engine = _engine(url, patience_s)
    try:
        with _migration_lock(settings.home), _advisory(engine):
            _migrate(engine, url)
    except DatabaseError as error:
        where = engine.url.render_as_string()
        raise StoreUnavailable(f"The database at {where} cannot be opened: {error.orig}.") from error
    return Store(engine)


def _engine(url: URL, patience_s: float) -> Engine:
    own = url.get_backend_name() == "sqlite"
    engine = create_engine(url, pool_pre_ping=not own)
    if own:
        event.listen(engine, "connect", partial(_configure_sqlite, patience_s))
        event.listen(engine, "begin", _begin_immediate)
    return engine


def _configure_sqlite(patience_s: float, connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # SQLAlchemy's own BEGIN below, so that writers queue instead of failing half-way
    cursor = connection.cursor()
    patience = f"busy_timeout={round(patience_s * 1000)}"
    for pragma in (patience, "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes", True) else "BEGIN")


@contextmanager
def _migration_lock(folder: Path) -> Iterator[None]:
    """Two processes that open a new home at once must not both migrate it."""
    with _ALEMBIC, (folder / "migrate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _advisory(engine: Engine) -> Iterator[None]:
    """Nor must two homes that open one new PostgreSQL database."""
    if engine.dialect.name != "postgresql":
        yield
        return
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATING})
        try:
            yield
        finally:
            connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": MIGRATING})


def _migrate(engine: Engine, url: URL) -> None:
    with engine.connect().execution_options(writes=False) as connection:  # a look, which no writer holds up
        if inspect(connection).has_table("alembic_version"):
            version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
            if version == HEAD:
                return
            if version is not None and version > HEAD:
                raise StoreUnavailable(
                    f"The database is of a newer Whetstone (schema {version}): update this checkout."
                )
            if version is not None and not any(MIGRATIONS.glob(f"versions/v{version}_*.py")):
                raise StoreUnavailable(
                    f"The database is of an older Whetstone (schema {version[:20]}) than this version can bring up to "
                    "date: open "
                    "it with a version in between first, or take a new home (WHETSTONE_HOME, and DATABASE_URL if set)."
                )
    from alembic import command

    command.upgrade(alembic_config(url), "head")


def alembic_config(url: str | URL) -> Any:
    """The configuration Alembic's own commands take (`alembic` needs no ini file here)."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = url
    return config
