"""Rows of any table, whatever they hold: read and removed by their key, and dumped and restored for a backup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Integer, Table, delete, insert, inspect
from sqlalchemy import select as sa_select
from sqlalchemy.exc import StatementError
from sqlmodel import Session, select

from backend.store.tables import Aware, Base

Row = TypeVar("Row", bound=Base)


def list_documents(
    session: Session, table: type[Any], column: str, among: Sequence[str] | None = None
) -> list[tuple[str, str]]:
    """Return (key, document) of every row, or of those keys, in the order of the keys."""
    key = inspect(table).primary_key[0]
    chosen = select(key, getattr(table, column)).order_by(key)
    return [(name, text) for name, text in session.exec(chosen if among is None else chosen.where(key.in_(among)))]


def list_rows(session: Session, table: type[Row]) -> list[Row]:
    """Return every row of a small table, in the order of the keys."""
    return list(session.exec(select(table).order_by(inspect(table).primary_key[0])))


def add_new(session: Session, row: Base) -> bool:
    """Add the row; False, and nothing is changed, where the table has its key already."""
    table = inspect(type(row))
    if session.get(type(row), table.primary_key_from_instance(row)) is not None:
        return False
    session.add(row)
    return True


def remove(session: Session, table: type[Any], key: str) -> bool:
    """Remove the row. Return whether it existed."""
    row = session.get(table, key)
    if row is not None:
        session.delete(row)
    return row is not None


REBUILT = frozenset({"supervisors", "claims", "catalog", "catalog_fits", "catalog_planned", "catalog_state"})
"""Tables of what is made anew, or is of processes that run."""
EVIDENCE = ("jobs", "artifacts", "evaluations", "models", "audit")
"""Tables of which one row means that somebody uses the database."""
ROWS_PER_STATEMENT = 500


def list_backup_tables() -> list[Table]:
    """Return the tables that a backup holds, in an order in which their rows can be restored."""
    return [table for table in Base.metadata.sorted_tables if table.name not in REBUILT]


def find_used_table(session: Session) -> str | None:
    """Return the first table whose rows show that the database is in use; None for a new database."""
    tables = Base.metadata.tables
    return next(
        (name for name in EVIDENCE if session.execute(sa_select(tables[name]).limit(1)).first() is not None), None
    )


def dump(session: Session, table: Table) -> Iterator[dict[str, Any]]:
    """Yield every row as JSON values, in the order of the keys. Numbers that the database assigned are left out."""
    columns = [column for column in table.columns if not (column.primary_key and isinstance(column.type, Integer))]
    result = session.execute(
        sa_select(*columns).order_by(*table.primary_key.columns), execution_options={"yield_per": ROWS_PER_STATEMENT}
    )
    for row in result.mappings():
        yield {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}


def restore(session: Session, table: Table, rows: Iterable[dict[str, Any]]) -> int:
    """Replace the table's rows by rows that `dump` made. Return how many. Raises ValueError if they do not fit the
    table."""
    moments = {column.name for column in table.columns if isinstance(column.type, Aware)}
    inserted, batch = 0, list[dict[str, Any]]()
    try:
        # 1. Empty the table.
        if table.name not in EVIDENCE:
            session.execute(delete(table))

        # 2. Insert the rows in batches.
        for row in rows:
            if unknown := row.keys() - {column.name for column in table.columns}:
                raise ValueError(f"{table.name} has no column {sorted(unknown)[0]}")
            batch.append({name: _moment(value) if name in moments else value for name, value in row.items()})
            if len(batch) == ROWS_PER_STATEMENT:
                session.execute(insert(table), batch)
                inserted, batch = inserted + len(batch), []
        if batch:
            session.execute(insert(table), batch)
    except StatementError as error:
        raise ValueError(f"{table.name} does not take its rows: {error.orig}") from error
    return inserted + len(batch)


def request_rebuild(session: Session) -> None:
    """Have rows that are made from files and other rows made again at the next check."""
    session.execute(delete(Base.metadata.tables["catalog_state"]))


def _moment(value: Any) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)
