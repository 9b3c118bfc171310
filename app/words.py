"""Figures and names as screens write them: sizes, durations, times, and a person's words made inert for Markdown."""

from __future__ import annotations

import re
from datetime import UTC, datetime

UNKNOWN = "–"
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|<>~$:])")


def plain(words: str) -> str:
    """Words that are shown as they are, whatever Markdown would make of them."""
    return _MARKUP.sub(r"\\\1", words.replace("\n", " "))


def seconds(value: float | None) -> str:
    """A duration a person reads: 42 s, 3 min 10 s, 2 h 5 min; a dash where unknown."""
    if value is None:
        return UNKNOWN
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(value: float | None) -> str:
    """Bytes in decimal units, three significant digits: 22.3 MB."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB" if value < 1000 else f"{value:,.0f} TB"


def count(value: int) -> str:
    """A count of parameters: 11.1 M, 7.24 B."""
    for unit, one in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= one:
            return f"{value / one:.3g} {unit}"
    return str(value)


def when(value: datetime | None) -> str:
    """A time of the store, in UTC and named so."""
    return UNKNOWN if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def ago(value: datetime | None, now: datetime | None = None) -> str:
    """`4 s ago`, or a dash."""
    return UNKNOWN if value is None else f"{seconds(max(0.0, ((now or datetime.now(UTC)) - value).total_seconds()))} ago"
