"""Display of objects in a notebook and at a prompt: text, and HTML without colours, so that it is readable on light and
dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from backend.present.tables import text
from backend.present.tables.evaluation import Cell, Row

NAMED = ("Variant", "Concurrency")
"""Columns that say what a row is of."""


class Table(list[Row]):
    """Rows of named cells, as `pandas.DataFrame` takes them. It shows a metric a line, a variant and load a column."""

    def __repr__(self) -> str:
        return text.table(self._header, self._lines)

    def _repr_html_(self) -> str:
        cells = [[str(line[0]), *map(text.cell, line[1:])] for line in self._lines]
        return grid(self._header, cells)

    @property
    def _header(self) -> list[str]:
        return ["", *(" at ".join(str(row[name]) for name in NAMED if name in row) for row in self)]

    @property
    def _lines(self) -> list[list[Cell]]:
        metrics = [name for name in (self[0] if self else ()) if name not in NAMED]
        return [[name, *(row[name] for row in self)] for name in metrics]


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in HTML; every cell is text."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts_table(title: str, known: Mapping[str, object]) -> str:
    """A title and what is known under it, in HTML; what is None is left out."""
    rows = [(name, str(value)) for name, value in known.items() if value is not None]
    return f"<strong>{escape(title)}</strong>{grid(('', ''), rows)}"
