"""A table as text, for a terminal and for Python's prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns aligned by their widest cell; numbers to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(header, *cells, strict=True)]
    right = [all(isinstance(row[i], int | float) or row[i] is None for row in rows) for i in range(len(header))]
    lines = [_line(list(header), widths, right), _line(["-" * width for width in widths], widths, right)]
    return "\n".join(lines + [_line(row, widths, right) for row in cells])


def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
    padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
    return "  ".join(padded).rstrip()


def cell(value: Any) -> str:
    """A value as it is written where nothing else is said of it."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return str(value)
