"""Rows that are made of something else, such as a file of the checkout: which version of it they were made of, and when
to make them anew.

A look costs one row while nothing has changed. Two processes may look at once: what has to be made is made outside of
the transaction, and kept by the first.
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
    """Where `what` was made of another version, `make` it anew; what that answers writes the rows, within one
    transaction.

    Raises what `make` does, and then nothing is written; StoreUnavailable.
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
    """The version, None before the first."""
    state_row = session.get(CatalogStateRow, what)
    return state_row.value if state_row else None


def set_version(session: Session, what: DerivedRows, version: str) -> None:
    session.merge(CatalogStateRow(name=what, value=version))
