"""Rows of any table by their key, where what is in them does not matter."""

from __future__ import annotations

from typing import Any

from sqlalchemy import inspect
from sqlmodel import Session, select


def documents(session: Session, table: type[Any], column: str) -> list[tuple[str, str]]:
    """(key, document) of every row, in the order of the keys."""
    key = inspect(table).primary_key[0]
    return [(name, text) for name, text in session.exec(select(key, getattr(table, column)).order_by(key))]


def remove(session: Session, table: type[Any], key: str) -> None:
    """Nothing where it is not there."""
    row = session.get(table, key)
    if row is not None:
        session.delete(row)
