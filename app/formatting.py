"""Format figures and names for screens: sizes, durations, times, and text that Markdown must not interpret."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from app.field_labels import error_sentence
from backend.domain.errors import WhetstoneError
from backend.domain.figures import figure

UNKNOWN = "–"
NOT_ESTIMATED = "unknown"
LONGEST = 400
"""Characters of typed text that a sentence repeats."""
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|<>~$:&/])")
_BLOCK = re.compile(r"^([-=]|\d+(?=\.(?:\s|$)))")
_TYPOGRAPHY = re.compile(r"(?<=<)(?=-)|(?<=-)(?=[->])|(?<=[<>~])(?==)")
_SHORTCODE = re.compile(r":(?!\d{1,2}:)(?=[\w+-]+:|material/)")
"""Code of an emoji or an icon; not the minutes of a time of day."""
_CODE = re.compile(r"`([^`\n]+)`")
_JOINER = "\u2060"
"""A word joiner, which is invisible: it splits codes that Streamlit replaces after Markdown's escapes are gone."""


def plain(words: str) -> str:
    """Return text on one line that Streamlit's Markdown shows as it is.

    Escapes hold for CommonMark, GFM, math and `:red[...]`. Emoji and icon codes and arrows are replaced in the text
    that comes out of Markdown, where no escape is left, so they are split by a word joiner. A web address remains a
    link that reads as it is.
    """
    parted = _TYPOGRAPHY.sub(_JOINER, _SHORTCODE.sub(f":{_JOINER}", " ".join(words.split())))
    escaped = _MARKUP.sub(r"\\\1", parted)
    return _BLOCK.sub(lambda match: f"\\{match[0]}" if match[0] in "-=" else f"{match[0]}{_JOINER}", escaped)


def message(words: object) -> str:
    """Return one of our sentences or an error for Markdown: text in backticks is code, the rest is plain."""
    text = " ".join((error_sentence(words) if isinstance(words, WhetstoneError) else str(words)).split())
    return "".join(_code(part) if index % 2 else _part(part) for index, part in enumerate(_CODE.split(text)))


def strong(words: str) -> str:
    """Return one of our sentences with text in backticks bold: code cannot be read on a coloured box."""
    parts = _CODE.split(" ".join(words.split()))
    return "".join(f"**{plain(part)}**" if index % 2 else _part(part) for index, part in enumerate(parts))


def cell(words: object) -> str:
    """Return one of our sentences for a place that shows no code, such as a table's cell: without its backticks."""
    return _CODE.sub(r"\1", str(words))


def _part(words: str) -> str:
    """Apply `plain` within a line; the spaces at both ends are preserved."""
    left, right = words[: len(words) - len(words.lstrip())], words[len(words.rstrip()) :]
    return f"{left}{plain(words)}{right}" if words.strip() else words


def _code(words: str) -> str:
    """Return text as code. Streamlit rewrites `:material/` even in code, before Markdown sees it."""
    return f"`{words.replace(':material/', f':{_JOINER}material/')}`"


def shorten(words: str, longest: int = LONGEST) -> str:
    """Return the text, cut after `longest` characters."""
    return words if len(words) <= longest else f"{words[:longest]}…"


def seconds(value: float | None) -> str:
    """Return a duration as text: 42 s, 3 min 10 s, 2 h 5 min; a dash if unknown."""
    if value is None:
        return UNKNOWN
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def duration_range(low: float, high: float) -> str:
    """Return a range of durations in one unit: `between 2 and 4 min`, `about 3 min`, `less than 1 min`."""
    unit, one = next(
        ((name, unit_s) for name, unit_s in (("h", 3600.0), ("min", 60.0)) if high >= 1.5 * unit_s), ("s", 1.0)
    )
    first, last = _rounded(low / one, high / one), _rounded(high / one, high / one)
    if last == "0":
        return f"less than 1 {unit}"
    if first == last:
        return f"about {last} {unit}"
    return f"up to {last} {unit}" if first == "0" else f"between {first} and {last} {unit}"


def dashed(words: str) -> str:
    """Return `2–18 min` for `between 2 and 18 min`, for places of fixed width; other words as they are."""
    return words.removeprefix("between ").replace(" and ", "–") if words.startswith("between ") else words


def _rounded(value: float, high: float) -> str:
    """Round to halves if the range is small."""
    return f"{round(value * 2) / 2:g}" if high < 5 else f"{value:.0f}"


def size(value: float | None) -> str:
    """Return bytes in decimal units with three significant digits: 22.3 MB."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB" if value < 1000 else f"{value:,.0f} TB"


def count(value: int) -> str:
    """Return a count of parameters: 11.1 M, 7.24 B."""
    for unit, one in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= one:
            return f"{value / one:.3g} {unit}"
    return str(value)


def local_time(value: datetime | None) -> str:
    """Return a time of the store in the viewer's zone: `2026-11-23 14:05:09`; marked UTC if that is unknown."""
    if value is None:
        return UNKNOWN
    zone = viewer_zone()
    return f"{value.astimezone(zone or UTC):%Y-%m-%d %H:%M:%S}{'' if zone else ' UTC'}"


def document_time(words: str | None) -> str:
    """Return an ISO 8601 time of a document in the viewer's zone; without an offset it is UTC."""
    try:
        value = datetime.fromisoformat(words or "")
    except ValueError:
        return words or UNKNOWN
    return local_time(value if value.tzinfo else value.replace(tzinfo=UTC))


def viewer_zone() -> ZoneInfo | None:
    """Return the time zone of the browser; None if unknown."""
    try:
        return ZoneInfo(st.context.timezone or "")
    except (ValueError, ZoneInfoNotFoundError):
        return None


def ago(value: datetime | None) -> str:
    """Return `4 s ago`, or a dash."""
    return UNKNOWN if value is None else f"{seconds(max(0.0, (datetime.now(UTC) - value).total_seconds()))} ago"


def range_text(ends: tuple[float, float] | None, unit: str = "") -> str:
    """Return `12–35 ms` with two or three significant digits; one figure if both ends round to it."""
    if ends is None:
        return NOT_ESTIMATED
    least, most = (figure(end, 2 if abs(end) < 100 else 3) for end in ends)
    return " ".join(filter(None, (least if least == most else f"{least}–{most}", unit)))
