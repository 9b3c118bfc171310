"""A table as text, and words of others made harmless, for a terminal and for Python's prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\\\)")
"""Of ECMA-48: a control sequence such as a colour, and a command to the terminal such as its title."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls of both sets but tab and line feed; breaks of other kinds, and what reorders the text after it; halves of
characters, which no encoding has."""
REPLACED = "\ufffd"


def printable(text: str) -> str:
    """Text that a terminal shows and does not obey: colours and commands are taken out, other controls replaced. Lines
    stay."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(REPLACED, _SEQUENCE.sub("", lines))


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
    """A value as it is written where nothing else is said of it, on one line."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return " ".join(printable(str(value)).split("\n"))
