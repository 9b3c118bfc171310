"""The times of a trace in any form -> seconds from the first request. Pure.

Moments are ISO 8601 with any number of digits after the second; without a zone they are read as UTC. Numbers are read

1. in the unit that was named, else in that of the format (Mooncake: milliseconds; BurstGPT: seconds);
2. where all lie between 2001 and 2052 as seconds, milliseconds, microseconds or nanoseconds since 1970, as these;
3. where any has a fraction, as seconds;
4. where at least one request a second comes on average, as seconds: as milliseconds that would be a thousand a second.

Other whole numbers may be seconds as well as milliseconds, and nobody but the file's owner can tell: the unit is asked
for.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, NamedTuple

from backend.domain.errors import InvalidWorkload
from backend.domain.figures import counted, span
from backend.domain.workload.row_report import UnusableRow

TimeUnit = Literal["auto", "s", "ms", "us", "ns"]
SECONDS: dict[TimeUnit, Decimal] = {
    "s": Decimal(1),
    "ms": Decimal("1e-3"),
    "us": Decimal("1e-6"),
    "ns": Decimal("1e-9"),
}
UNIT_NAMES: dict[TimeUnit, str] = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
MOMENTS, UNCLEAR = "moments", "unclear"
EPOCH_FROM, EPOCH_TO = Decimal("1.0e9"), Decimal("2.6e9")
"""2001 and 2052, in seconds since 1970."""
MOST_SECONDS = Decimal("1e9")
"""Between two requests: 30 years."""
_MOMENT = re.compile(
    r"(?P<day>\d{4}[-/]\d{1,2}[-/]\d{1,2})(?:[T ]\s*(?P<time>\d{1,2}:\d{2}(?::\d{2})?)(?P<part>[.,]\d+)?)?"
    r"\s*(?P<zone>Z|UTC|GMT|[+-]\d{2}:?\d{2})?",
    re.IGNORECASE,
)
_FORM = "a time that is neither a number nor a moment such as 2026-01-31T12:00:00"


class Times(NamedTuple):
    """`seconds` from the earliest, row by row: None of a row without a time, UnusableRow of one whose time cannot be
    read."""

    seconds: list[float | UnusableRow | None]
    unit: str | None
    """One of NAMES, MOMENTS, or UNCLEAR, and then no row has a time; None where there are no times."""


class _Time(NamedTuple):
    """`form` is what all times of a file must share."""

    value: Decimal
    form: str


def read_times(
    name: str, values: Sequence[Any], unit: TimeUnit = "auto", of_format: TimeUnit = "auto", *, needed: bool = True
) -> Times:
    """Read every row's time. `unit` was named by the person, `of_format` by the format.

    Raises InvalidWorkload where the times are `needed`, are whole numbers that may be seconds or milliseconds, and no
    unit was named.
    """
    # 1. Each value by itself: a number, or a moment in seconds.
    read_values = [_read(value) for value in values]
    times = [value for value in read_values if isinstance(value, _Time)]
    if not times:
        return Times([value if isinstance(value, UnusableRow) else None for value in read_values], None)
    # 2. The form that most of them have; a row of another form cannot be placed among them.
    form = Counter(time.form for time in times).most_common(1)[0][0]
    same = [time.value for time in times if time.form == form]
    chosen = _unit(same, unit, of_format) if form == "number" else "s"
    if chosen is None and needed:
        raise _unclear(name, same)
    if chosen is None:
        return Times([None] * len(values), UNCLEAR)
    # 3. Seconds from the earliest one.
    first, scale = min(same), SECONDS[chosen]
    seconds: list[float | UnusableRow | None] = []
    for value in read_values:
        if isinstance(value, _Time):
            seconds.append(_offset(value, form, (value.value - first) * scale))
        else:
            seconds.append(value)
    return Times(seconds, UNIT_NAMES[chosen] if form == "number" else MOMENTS)


def _offset(time: _Time, form: str, seconds: Decimal) -> float | UnusableRow:
    if time.form != form:
        return UnusableRow(f"its time is a {time.form}, that of other rows a {form}")
    if seconds > MOST_SECONDS:
        return UnusableRow("its time is 30 years after the first one")
    return round(float(seconds), 9)


def _read(value: Any) -> _Time | UnusableRow | None:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str | datetime):
        return UnusableRow(_FORM)
    if isinstance(value, datetime):
        return _moment(value.isoformat())
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return _moment(str(value).strip())
    return _Time(number, "number") if number.is_finite() and abs(number) < 10**24 else UnusableRow(_FORM)


def _moment(text: str) -> _Time | UnusableRow:
    """Exact to the last digit, which `datetime` is not beyond microseconds."""
    # 1. Day and time of day, in the zone.
    match = _MOMENT.fullmatch(text)
    if match is None:
        return UnusableRow(_FORM)
    year, month, day = (int(part) for part in re.split("[-/]", match["day"]))
    hour, minute, second = (int(part) for part in ((match["time"] or "0:0") + ":0").split(":")[:3])
    zone = _zone(match["zone"])
    try:
        whole = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return UnusableRow(_FORM)
    # 2. A leap second, and the part of a second.
    leap = max(0, second - 59)
    part = Decimal("0" + match["part"].replace(",", ".")) if match["part"] else Decimal(0)
    form = "moment without a zone" if match["zone"] is None else "moment with a zone"
    return _Time(Decimal(int(whole)) + leap + part - zone, form)


def _zone(text: str | None) -> int:
    """Seconds that the zone is ahead of UTC."""
    if text is None or text[0] not in "+-":
        return 0
    digits = text[1:].replace(":", "")
    return (1 if text[0] == "+" else -1) * (3600 * int(digits[:2]) + 60 * int(digits[2:]))


def _unit(values: Sequence[Decimal], named: TimeUnit, of_format: TimeUnit) -> TimeUnit | None:
    """Return the unit by the rules above, None where they do not decide it."""
    if named != "auto":
        return named
    if of_format != "auto":
        return of_format
    for unit, scale in SECONDS.items():
        if all(EPOCH_FROM <= value * scale < EPOCH_TO for value in values):
            return unit
    length = max(values) - min(values)
    whole = all(value == value.to_integral_value() for value in values)
    return None if whole and length > len(values) - 1 else "s"


def _unclear(name: str, values: Sequence[Decimal]) -> InvalidWorkload:
    length = float(max(values) - min(values))
    return InvalidWorkload(
        f"The times of {name} may be in seconds ({counted(len(values), 'request')} over {span(length)}) or in "
        "milliseconds "
        f"(over {span(length / 1000)}): say which with {{}}, as s or ms.",
        "time_unit",
    )
