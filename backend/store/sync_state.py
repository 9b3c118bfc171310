"""Rows that are made from something else, such as a file of the checkout: from which version they were made, and when
to make them again.

A check costs one row while nothing has changed. Two processes may check at once: rows are made outside of the
transaction, and the first process writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from sqlmodel import Session

from backend.store.database import Store
from backend.store.tables import CatalogStateRow

DerivedRows = Literal["bundled", "planner", "presets"]
Write = Callable[[Session], None]


def sync_rows(store: Store, what: DerivedRows, version: str, make: Callable[[], Write]) -> None:
    """If `what` was made from another version, make it again; `make` returns a function that writes the rows in one
    transaction.

    Raises what `make` raises, and then nothing is written; StoreUnavailable.
    """
    with store.read() as session:
        if stored_version(session, what) == version:
            return
    write = make()
    with store.upkeep() as session:
        if stored_version(session, what) != version:  # no other process was faster
            write(session)
            set_version(session, what, version)


def stored_version(session: Session, what: DerivedRows) -> str | None:
    """Return the version from which the rows were made; None before the first time."""
    state_row = session.get(CatalogStateRow, what)
    return state_row.value if state_row else None


def set_version(session: Session, what: DerivedRows, version: str) -> None:
    session.merge(CatalogStateRow(name=what, value=version))
