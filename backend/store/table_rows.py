"""Rows of any table, where what is in them does not matter: by their key, and all of them for a backup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Integer, Table, delete, insert, inspect
from sqlalchemy import select as sa_select
from sqlalchemy.exc import StatementError
from sqlmodel import Session, select

from backend.store.tables import Aware, Base


def list_documents(
    session: Session, table: type[Any], column: str, among: Sequence[str] | None = None
) -> list[tuple[str, str]]:
    """(key, document) of every row, or of those keys, in the order of the keys."""
    key = inspect(table).primary_key[0]
    chosen = select(key, getattr(table, column)).order_by(key)
    return [(name, text) for name, text in session.exec(chosen if among is None else chosen.where(key.in_(among)))]


def remove(session: Session, table: type[Any], key: str) -> None:
    """Nothing where it is not there."""
    row = session.get(table, key)
    if row is not None:
        session.delete(row)


REBUILT = frozenset({"supervisors", "claims", "catalog", "catalog_fits", "catalog_planned", "catalog_state"})
"""Tables of what is made anew, or is of processes that run."""
EVIDENCE = ("jobs", "artifacts", "evaluations", "models", "audit")
"""Tables of which one row means that somebody uses the database."""
ROWS_PER_STATEMENT = 500


def list_backup_tables() -> list[Table]:
    """Those that a backup holds, in an order in which their rows can be put back."""
    return [table for table in Base.metadata.sorted_tables if table.name not in REBUILT]


def find_used_table(session: Session) -> str | None:
    """The first table that says so; None of a database as new."""
    tables = Base.metadata.tables
    return next(
        (name for name in EVIDENCE if session.execute(sa_select(tables[name]).limit(1)).first() is not None), None
    )


def dump(session: Session, table: Table) -> Iterator[dict[str, Any]]:
    """Every row as JSON has it, in the order of the keys; a number that the database itself gave is left out."""
    columns = [column for column in table.columns if not (column.primary_key and isinstance(column.type, Integer))]
    result = session.execute(
        sa_select(*columns).order_by(*table.primary_key.columns), execution_options={"yield_per": ROWS_PER_STATEMENT}
    )
    for row in result.mappings():
        yield {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}


def restore(session: Session, table: Table, rows: Iterable[dict[str, Any]]) -> int:
    """Put rows as `dump` gave them into the table in place of what is there; how many. Raises ValueError where they
    are no rows of it."""
    moments = {column.name for column in table.columns if isinstance(column.type, Aware)}
    found, waiting = 0, list[dict[str, Any]]()
    try:
        if table.name not in EVIDENCE:
            session.execute(delete(table))
        for row in rows:
            if unknown := row.keys() - {column.name for column in table.columns}:
                raise ValueError(f"{table.name} has no column {sorted(unknown)[0]}")
            waiting.append({name: _moment(value) if name in moments else value for name, value in row.items()})
            if len(waiting) == ROWS_PER_STATEMENT:
                session.execute(insert(table), waiting)
                found, waiting = found + len(waiting), []
        if waiting:
            session.execute(insert(table), waiting)
    except StatementError as error:
        raise ValueError(f"{table.name} does not take its rows: {error.orig}") from error
    return found + len(waiting)


def request_rebuild(session: Session) -> None:
    """Have what is made of files and rows made again at the next look."""
    session.execute(delete(Base.metadata.tables["catalog_state"]))


def _moment(value: Any) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)
