"""Tables as text, and text of others made harmless, for a terminal and for Python's prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\\\)")
"""Matches a control sequence of ECMA-48, such as a colour or the terminal's title."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Matches control characters except tab and line feed, other line breaks, marks that reorder text, and lone
surrogates."""
REPLACED = "\ufffd"


def printable(text: str) -> str:
    """Return text without commands to the terminal: sequences are removed, other controls replaced. Lines stay."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub(REPLACED, _SEQUENCE.sub("", lines))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows in columns as wide as their widest cell; numbers are aligned to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(header, *cells, strict=True)]
    right = [all(isinstance(row[i], int | float) or row[i] is None for row in rows) for i in range(len(header))]
    lines = [_line(list(header), widths, right), _line(["-" * width for width in widths], widths, right)]
    return "\n".join(lines + [_line(row, widths, right) for row in cells])


def _line(cells: list[str], widths: list[int], right: list[bool]) -> str:
    padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
    return "  ".join(padded).rstrip()


def cell(value: Any) -> str:
    """Format a value on one line."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return " ".join(printable(str(value)).split("\n"))
