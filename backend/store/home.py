"""The folder of a home and the address of its database. Both are for the owner alone; if they cannot be, an error says
so."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from backend.domain.errors import HomeUnusable
from backend.settings import Settings

DATABASE = "whetstone.db"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


def prepare(settings: Settings) -> URL:
    """Make the folder and the database's file if they are missing, make them private, and return the database's
    address.

    A folder that holds anything but a home keeps its permissions. Raises HomeUnusable.
    """
    home = settings.home
    try:
        # 1. Make the folder.
        str(home).encode()
        home.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        if (home / DATABASE).exists() or not any(home.iterdir()):
            _make_private(home, PRIVATE_FOLDER)

        # 2. Make the database's file.
        if settings.database_url is None:
            _create_database(home / DATABASE)
            for file in home.glob(f"{DATABASE}*"):
                _make_private(file, PRIVATE_FILE)
        if not os.access(home, os.W_OK | os.X_OK):
            raise PermissionError(None, "it may not be written")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise HomeUnusable(f"WHETSTONE_HOME, {home}, cannot be used ({why}): set it to a folder of your own.") from None
    return database_url(settings)


def _create_database(database: Path) -> None:
    """An empty file where there is none. One that is there is not even opened: closing any descriptor of it would drop
    the locks that this process holds on it through SQLite (POSIX advisory locks; sqlite.org/howtocorrupt.html, 2.2)."""
    with suppress(FileExistsError):
        os.close(os.open(database, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE_FILE))
    if not os.access(database, os.R_OK | os.W_OK):
        raise PermissionError(None, f"{database.name} may not be written")


def _make_private(path: Path, mode: int) -> None:
    status = path.stat()
    if status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) != mode:
        path.chmod(mode)


def database_url(settings: Settings) -> URL:
    """Return the address in DATABASE_URL (PostgreSQL by psycopg 3), else that of the home's own file. Raises
    HomeUnusable."""
    if settings.database_url is None:
        return URL.create("sqlite", database=str(settings.home / DATABASE))
    try:
        url = make_url(settings.database_url)
        if url.drivername in {"postgres", "postgresql"}:
            url = url.set(drivername="postgresql+psycopg")
        url.get_dialect().import_dbapi()
    except (ArgumentError, ImportError, ValueError):
        raise HomeUnusable(
            "DATABASE_URL is no address of a database: write postgresql://USER:PASSWORD@HOST/NAME or sqlite:////PATH."
        ) from None
    return url
