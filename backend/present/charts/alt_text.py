"""Alternative text, rows and CSV of a chart, for readers who cannot see it or want to draw it again.

All are made from the plotly figure alone, so that they say exactly what is drawn.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from backend.domain.figures import figure as number
from backend.present.charts.theme import Figure, unbroken
from backend.present.tables.evaluation import Row, sheet

INTERVAL = ("from", "to")


def alt(figure: Figure) -> str:
    """Return title and axes, each series' lowest and highest point, and the best series if that is defined."""
    drawn = figure["layout"]
    title = unbroken(drawn["title"]["text"])
    if not figure["data"]:
        return f"{title}: {drawn['annotations'][0]['text']}"
    traces = _series(figure)
    series = [
        *(_series_words(trace, drawn) for trace in traces),
        *(unescape(note.get("hovertext", note["text"])) for note in drawn.get("annotations", ())),
    ]
    sentences = [title, _axes(traces, drawn), "; ".join(series), _leader(traces, drawn)]
    return f"{'. '.join(sentence for sentence in sentences if sentence)}."


def _series(figure: Figure) -> list[dict[str, Any]]:
    """Return the traces with points of their own; a guide line repeats points of others."""
    return [trace for trace in figure["data"] if trace.get("marker") and trace["x"]]


def _axes(traces: list[dict[str, Any]], drawn: dict[str, Any]) -> str:
    along = [x for trace in traces for x in trace["x"]]
    if not along:
        return ""
    ends = (
        ", ".join(dict.fromkeys(along))
        if isinstance(along[0], str)
        else f"{_along(min(along))} to {_along(max(along))}"
    )
    return f"Across: {drawn['xaxis']['title']['text']}, {ends}. Up: {drawn['yaxis']['title']['text']}"


def _series_words(trace: dict[str, Any], drawn: dict[str, Any]) -> str:
    one = len(set(trace["customdata"])) == 1
    name, ys = unescape(trace["customdata"][0] if one else trace["name"]), trace["y"]
    if len(ys) == 1:
        return f"{name}: {_point(trace, 0, drawn)}"
    low, high = ys.index(min(ys)), ys.index(max(ys))
    hollow = sum(_is_hollow(trace, place) for place in range(len(ys)))
    open_marks = f", {hollow} of them not the server's figures" if hollow else ""
    return f"{name}: {len(ys)} points{open_marks} from {_point(trace, low, drawn)} to {_point(trace, high, drawn)}"


def _point(trace: dict[str, Any], place: int, drawn: dict[str, Any]) -> str:
    """`240 at concurrency 16`."""
    marks, mark = trace.get("text"), drawn.get("meta", {}).get("mark")
    where = (mark, marks[place]) if marks and mark else (drawn["xaxis"]["title"]["text"], _along(trace["x"][place]))
    return f"{number(trace['y'][place])} at {_unitless(where[0])} {where[1]}"


def _along(value: float | str) -> str:
    """Format an x value: whole numbers, such as streams and layers, stay whole; names stay as they are."""
    return str(value) if isinstance(value, int | str) else number(value)


def _unitless(title: str) -> str:
    bare = title.partition(" (")[0]
    return f"{bare[:1].lower()}{bare[1:]}" if not bare[:2].isupper() else bare


def _leader(traces: list[dict[str, Any]], drawn: dict[str, Any]) -> str:
    """Return which series is best at the largest x where all have a valid point. A figure, not a verdict."""
    better = drawn.get("meta", {}).get("better")
    valid = [{x for place, x in enumerate(trace["x"]) if not _is_hollow(trace, place)} for trace in traces]
    shared = set.intersection(*valid) if valid else set()
    if better is None or not shared or len(traces) < 2:
        return ""
    x_value = max(shared)
    ends = [(trace["y"][trace["x"].index(x_value)], unescape(trace["customdata"][0])) for trace in traces]
    value, name = (min if better == "lower" else max)(ends)
    end = "lowest" if better == "lower" else "highest"
    where = f"{_unitless(drawn['xaxis']['title']['text'])} {_along(x_value)}"
    return f"{better.title()} is better: at {where} {name} is {end}, {number(value)}"


def _is_hollow(trace: dict[str, Any], place: int) -> bool:
    """Tell whether a mark is open among filled ones: not the server's own figure. Rings are open as a whole trace."""
    symbols = trace["marker"].get("symbol")
    return isinstance(symbols, list) and symbols[place].endswith("-open")


def rows(figure: Figure) -> list[Row]:
    """Return one row per plotted point: series, x and y under the axes' titles, intervals, and provenance."""
    own = [trace for trace in _series(figure) if trace.get("hoverinfo") != "skip"]
    return [_row(trace, place, figure["layout"]) for trace in own for place in range(len(trace["x"]))]


def _row(trace: dict[str, Any], place: int, drawn: dict[str, Any]) -> Row:
    meta = drawn.get("meta", {})
    row: Row = {"Series": unescape(trace["customdata"][place])}
    if trace.get("text"):
        row[meta.get("mark") or meta["label"]] = trace["text"][place]
    for axis in ("x", "y"):
        title = drawn[_axis(trace, axis)]["title"]["text"]
        row |= {title: trace[axis][place], **_interval(trace, axis, place, title, meta.get("interval", INTERVAL))}
    if isinstance(trace["marker"].get("symbol"), list):
        row["Valid"] = "no" if _is_hollow(trace, place) else "yes"
    return {**row, "Provenance": unescape(meta.get("provenance", "").replace("<br>", " "))}


def _axis(trace: dict[str, Any], axis: str) -> str:
    """Return the layout's name of the trace's axis: `y2` is `yaxis2`."""
    own = str(trace.get(f"{axis}axis", axis))
    return f"{axis}axis{own[1:]}"


def _interval(trace: dict[str, Any], axis: str, place: int, title: str, ends: tuple[str, str]) -> Row:
    bar = trace.get(f"error_{axis}", {})
    if "array" not in bar:
        return {}
    value = trace[axis][place]
    return {f"{title}, {ends[0]}": value - bar["arrayminus"][place], f"{title}, {ends[1]}": value + bar["array"][place]}


def csv(figure: Figure) -> str:
    """Return the chart's rows as CSV, one column for each name that a row has."""
    table = rows(figure)
    columns: dict[str, None] = {}
    for row in table:
        columns |= dict.fromkeys(row)
    return sheet(list(columns), table)


def file_name(figure: Figure) -> str:
    """Return a file name for a download, without its ending: `time-to-first-token-p50-ms`."""
    return re.sub(r"[^a-z0-9]+", "-", unbroken(figure["layout"]["title"]["text"]).lower()).strip("-")[:60] or "chart"
