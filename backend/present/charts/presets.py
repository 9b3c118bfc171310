"""Charts that compare presets; estimated and measured figures never look alike. Pure data for plotly.

Estimated series are open marks with a broad bar for their range, and dashed lines; measured ones are filled marks and
solid lines; the legend names the kind too. Whiskers are 95% intervals on all other charts, so estimates have none.
Published figures name no concurrency, so they are shown in tables only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from backend.domain.figures import figure, streams
from backend.domain.planner.roofline import ExpectedLoad
from backend.present.charts.markers import PER_USER, legend_name
from backend.present.charts.theme import (
    COLOURS,
    Figure,
    Theme,
    concurrency_axis,
    empty,
    layout,
    pale,
    style,
    text,
    whiskers,
)
from backend.present.preset_figures import Estimated, Measurement

Kind = Literal["estimated", "measured"]
SIGNS: dict[Kind, str] = {"estimated": "≈", "measured": "●"}
Ends = tuple[float, float]
LOG_FROM = 50.0
"""If the largest figure is this many times the smallest, the axis is logarithmic, so that small ones can be read."""
PARETO = "Speed per user against tokens per dollar"
LATENCY_PRICE = "Time per output token against price"
PER_DOLLAR = "Output tokens/s per dollar per hour"
UNPRICED = "No hourly price is known for this selection, so there are no tokens per dollar."


class Point(NamedTuple):
    """Figures at one concurrency. Ends are (least, most), equal for a measured figure; None if not known."""

    concurrency: int
    per_user: Ends | None
    per_dollar: Ends | None
    tpot_ms: Ends | None
    price: Ends | None
    rate: float | None = None
    """Requests per second, in place of a fixed concurrency."""

    @property
    def demand(self) -> str:
        return streams(self.concurrency) if self.rate is None else f"{self.rate:,.6g} requests/s"


class Series(NamedTuple):
    """One preset's figures of one kind. `place` gives colour and symbol, which both kinds of a preset share."""

    name: str
    kind: Kind
    place: int
    points: tuple[Point, ...]
    provenance: str

    @property
    def title(self) -> str:
        return f"{SIGNS[self.kind]} {self.name} ({self.kind})"


def estimated_series(name: str, place: int, estimated: Estimated) -> Series:
    """Return the series of estimates: tokens/s of all streams per user, and per dollar of the hourly price."""
    points = []
    for level in estimated.levels:
        rate, hour, concurrency = level.output_tokens_per_s, level.price_per_hour, level.load.concurrency
        points.append(
            Point(
                concurrency,
                _over(rate, concurrency),
                _over(rate, hour),
                level.tpot_ms,
                level.price_per_million_output,
                level.load.rate,
            ),
        )
    note = next((level.price_note for level in estimated.levels if level.price_note), None)
    target = estimated.levels[0].target if estimated.levels else ""
    return Series(
        name, "estimated", place, tuple(points), f"Estimated for {target}" + (f"; price {note}" if note else "")
    )


def measured_series(name: str, place: int, measurement: Measurement) -> Series:
    """Return the series of sound measured levels: other levels are not the server's figures."""
    # Each figure with its interval.
    points = tuple(
        Point(
            level.concurrency,
            _twice(level.output_tokens_per_s_per_request),
            _over(_twice(level.output_tokens_per_s), measurement.price_per_hour),
            _twice(level.tpot_ms_p50),
            _twice(level.price_per_million_output),
            level.load.value if level.load.mode == "rate" else None,
        )
        for level in measurement.levels
        if level.sound
    )
    # Say where the price comes from.
    hour = ""
    if measurement.price_per_hour is not None:
        hour = f" At {figure(measurement.price_per_hour)} USD per hour, as entered with the evaluation."
    return Series(name, "measured", place, points, f"{measurement.provenance}{hour}")


def _over(ends: Ends | None, divisor: float | None) -> Ends | None:
    return (ends[0] / divisor, ends[1] / divisor) if ends and divisor else None


def _twice(value: float | None) -> Ends | None:
    return None if value is None else (value, value)


def middle(ends: Ends | None) -> float:
    """Return the geometric mean of both ends; 0 if they are not known."""
    return math.sqrt(ends[0] * ends[1]) if ends else 0.0


def pareto(series: Sequence[Series], theme: Theme = "light") -> Figure:
    """Chart tokens/s per user against tokens/s per dollar per hour, with a front per kind; other points are pale."""
    # 1. The points with both figures, and the front of each kind.
    drawn = [(one, [p for p in one.points if p.per_user and p.per_dollar and p.rate is None]) for one in series]
    drawn = [(one, points) for one, points in drawn if points]
    if not drawn:
        return empty(PARETO, UNPRICED, theme)
    kinds: list[Kind] = ["estimated", "measured"]
    fronts = {kind: front([p for one, points in drawn if one.kind == kind for p in points]) for kind in kinds}
    # 2. Lines, marks and axes.
    edges = [_edge(kind, fronts[kind], theme) for kind in kinds if len(fronts[kind]) > 1]
    marks = [_marks(one, points, fronts[one.kind], theme) for one, points in drawn]
    x, y = (_axis(label, [mark[axis] for mark in marks]) for label, axis in ((PER_DOLLAR, "x"), (PER_USER, "y")))
    meta: dict[str, Any] = {
        "mark": "Concurrency (streams)",
        "provenance": _provenance(series),
        "interval": ["least", "most"],
    }
    return {"data": [*edges, *marks], "layout": layout(PARETO, x, y, theme, **meta)}


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other one beats in both figures (middles of ranges), by tokens per dollar."""
    middles = {point: (middle(point.per_dollar), middle(point.per_user)) for point in points}
    front = [p for p in points if not any(_dominates(middles[other], middles[p]) for other in points)]
    return sorted(front, key=lambda point: middles[point])


def _dominates(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] >= b[0] and a[1] >= b[1] and a != b


def _edge(kind: Kind, points: Sequence[Point], theme: Theme) -> dict[str, Any]:
    dash = "dot" if kind == "estimated" else "solid"
    return {
        "type": "scatter",
        "mode": "lines",
        "hoverinfo": "skip",
        "name": f"Front of {kind} points",
        "x": [middle(point.per_dollar) for point in points],
        "y": [middle(point.per_user) for point in points],
        "line": {"color": COLOURS[theme].muted, "width": 1, "dash": dash},
    }


def _marks(one: Series, points: Sequence[Point], on_front: Sequence[Point], theme: Theme) -> dict[str, Any]:
    ordered = sorted(points, key=lambda point: point not in on_front)  # the legend takes the first mark's colour
    colour = style(one.place, theme).colour
    colours = [colour if point in on_front else pale(colour) for point in ordered]
    base = _series(one, theme, [middle(p.per_dollar) for p in ordered], [middle(p.per_user) for p in ordered])
    base |= {"mode": "markers+text", "cliponaxis": False, "text": [str(point.concurrency) for point in ordered]}
    base |= {"textposition": "top center", "textfont": {"color": COLOURS[theme].muted, "size": 11}}
    base["hovertext"] = [
        _hover_text(
            one, p, _about("tokens/s per user", p.per_user), _about("tokens/s per dollar per hour", p.per_dollar)
        )
        for p in ordered
    ]
    base["marker"] |= {"color": colours, "size": 11, "line": {"color": colours, "width": 2}}
    if one.kind == "estimated":
        base["error_x"] = _bars([point.per_dollar for point in ordered], pale(colour))
        base["error_y"] = _bars([point.per_user for point in ordered], pale(colour))
    return base


def tpot(series: Sequence[Series], theme: Theme = "light") -> Figure:
    """Chart the time per output token in milliseconds against concurrency."""
    return _lines("Time per output token (ms)", "ms", series, lambda point: point.tpot_ms, theme)


def price(series: Sequence[Series], theme: Theme = "light") -> Figure:
    """Chart the price per million output tokens against concurrency, in USD."""
    return _lines("Price per million output tokens (USD)", "per million", series, lambda point: point.price, theme)


def latency_price(series: Sequence[Series], load: ExpectedLoad, theme: Theme = "light") -> Figure:
    """Chart the time per output token against the price per million output tokens, at one load."""
    at_load = [(one, [p for p in one.points if p.demand == load.demand]) for one in series]
    drawn = [(one, points) for one, points in at_load if any(p.price and p.tpot_ms for p in points)]
    if not drawn:
        return empty(LATENCY_PRICE, "No time and price are known at this load.", theme)
    marks = []
    for one, points in drawn:
        mark = _series(one, theme, [middle(p.price) for p in points], [middle(p.tpot_ms) for p in points])
        mark["mode"] = "markers"
        mark["marker"]["size"] = 12
        mark["hovertext"] = [
            _hover_text(
                one, p, _about("ms per output token", p.tpot_ms), _about("USD per million output tokens", p.price)
            )
            for p in points
        ]
        if one.kind == "estimated":
            pale_colour = pale(style(one.place, theme).colour)
            mark["error_x"] = _bars([p.price for p in points], pale_colour)
            mark["error_y"] = _bars([p.tpot_ms for p in points], pale_colour)
        marks.append(mark)
    x, y = (
        _axis(label, [mark[axis] for mark in marks])
        for label, axis in (("Price per million output tokens (USD)", "x"), ("Time per output token (ms)", "y"))
    )
    meta: dict[str, Any] = {"better": "lower", "interval": ["least", "most"], "provenance": _provenance(series)}
    return {"data": marks, "layout": layout(LATENCY_PRICE, x, y, theme, **meta)}


def _lines(
    title: str, unit: str, series: Sequence[Series], value: Callable[[Point], Ends | None], theme: Theme
) -> Figure:
    drawn = [(one, [(p, ends) for p in one.points if p.rate is None and (ends := value(p))]) for one in series]
    drawn = [(one, points) for one, points in drawn if points]
    if not drawn:
        return empty(title, "This figure is not known for the selection.", theme)
    traces = [_line(one, points, unit, theme) for one, points in drawn]
    levels = sorted({point.concurrency for _, points in drawn for point, _ in points})
    meta: dict[str, Any] = {"better": "lower", "interval": ["least", "most"], "provenance": _provenance(series)}
    y = _axis(title, [trace["y"] for trace in traces])
    return {"data": traces, "layout": layout(title, concurrency_axis(levels), y, theme, **meta)}


def _line(one: Series, points: Sequence[tuple[Point, Ends]], unit: str, theme: Theme) -> dict[str, Any]:
    trace = _series(one, theme, [point.concurrency for point, _ in points], [middle(ends) for _, ends in points])
    dash = "dash" if one.kind == "estimated" else "solid"
    trace |= {"mode": "lines+markers", "line": {"color": style(one.place, theme).colour, "dash": dash, "width": 2}}
    trace["hovertext"] = [_hover_text(one, point, _about(unit, ends)) for point, ends in points]
    if one.kind == "estimated":
        trace["error_y"] = _bars([ends for _, ends in points], pale(style(one.place, theme).colour))
    return trace


def _series(one: Series, theme: Theme, x: list[Any], y: list[float]) -> dict[str, Any]:
    # Estimates are open marks.
    mark_style = style(one.place, theme)
    symbol = f"{mark_style.symbol}-open" if one.kind == "estimated" else mark_style.symbol
    return {
        "type": "scatter",
        "name": legend_name(f"{SIGNS[one.kind]} {one.name}"),
        "customdata": [text(one.title)] * len(x),
        "x": x,
        "y": y,
        "hoverinfo": "text",
        "marker": {
            "color": mark_style.colour,
            "symbol": symbol,
            "size": 9,
            "line": {"color": mark_style.colour, "width": 2},
        },
    }


def _bars(ends: Sequence[Ends | None], colour: str) -> dict[str, Any]:
    known = [(*end, middle(end)) for end in ends if end]
    above, below = [most - mean for _, most, mean in known], [mean - least for least, _, mean in known]
    return whiskers(above, below, colour, thickness=7, width=0)


def _about(unit: str, ends: Ends | None) -> str:
    if ends is None:
        return ""
    return f"{figure(ends[0])} {unit}" if ends[0] == ends[1] else f"{figure(ends[0])} to {figure(ends[1])} {unit}"


def _hover_text(one: Series, point: Point, *figures: str) -> str:
    return "<br>".join([f"<b>{text(one.title)}</b> at {point.demand}", *figures, text(one.provenance)])


def _provenance(series: Sequence[Series]) -> str:
    return "; ".join(dict.fromkeys(f"{one.title}: {one.provenance}" for one in series))


def _axis(label: str, values: Sequence[Sequence[float]]) -> dict[str, Any]:
    known = [value for row in values for value in row if value > 0]
    if known and max(known) / min(known) >= LOG_FROM:
        return {"label": f"{label} (log scale)", "type": "log"}
    return {"label": label, "rangemode": "tozero"}
