"""Single requests as charts: a run on the clock with every request, and the distribution of a latency. Pure data for plotly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from backend.domain.charts_theme import COLOURS, Figure, Theme, empty, layout, style, text
from backend.domain.load import RequestRecord
from backend.domain.metrics import steady_window
from backend.domain.wording import figure

Records = Sequence[RequestRecord]
MOST_POINTS = 400
"""Of one distribution: beyond that, quantiles evenly apart, the ends kept."""


class Latency(NamedTuple):
    """`seconds` of a good record; None where it has none."""

    title: str
    seconds: Callable[[RequestRecord], float | None]


LATENCIES = {
    "ttft_ms": Latency("Time to first token", lambda r: _span(r.sent, r.first_content)),
    "client_latency_ms": Latency("Client latency", lambda r: _span(r.sent, r.end)),
}


def timeline(name: str, at: str, records: Records, provenance: str, theme: Theme = "light") -> Figure:
    """Every request of one run, a line a stream: waiting for the first token, then answering. Seconds since the first was sent.

    `at` is the load in words. Warm-up is shaded; the steady window lies between the dotted lines. A request that failed has a
    mark of its own.
    """
    title = f"Requests of {name} at {at}"
    sent = [record for record in records if record.sent is not None]
    if not sent:
        return empty(title, "No request was sent.", theme)
    start = min(record.sent for record in sent if record.sent is not None)
    colours, streams = COLOURS[theme], len({record.stream for record in sent})
    traces = [
        _bars("Warm-up", [r for r in sent if r.warm], lambda r: (r.sent, r.end), start, colours.muted, theme),
        _bars(
            "Waiting for the first token", _good(sent), lambda r: (r.sent, r.first_content), start, style(3, theme).colour, theme
        ),
        _bars("Answering", _good(sent), lambda r: (r.first_content, r.end), start, style(1, theme).colour, theme),
        _bars(
            "Failed",
            [r for r in sent if not r.ok and not r.warm],
            lambda r: (r.sent, r.end),
            start,
            style(2, theme).colour,
            theme,
        ),
    ]
    x = {"label": "Since the first request (s)", "rangemode": "tozero"}
    y = {"label": "Stream", "dtick": max(1, streams // 16), "rangemode": "normal"}
    drawn = layout(title, x, y, theme, mark="Sent after (s)", provenance=provenance)
    height = min(720, 220 + 12 * streams)
    shapes = _window(records, start, colours.muted)
    return {
        "data": [trace for trace in traces if trace["x"]],
        "layout": {**drawn, "barmode": "overlay", "bargap": 0.2, "height": height, "shapes": shapes},
    }


def _good(records: Records) -> list[RequestRecord]:
    return [record for record in records if record.ok and not record.warm and record.first_content is not None]


def _bars(
    name: str, records: Records, ends: Callable[[RequestRecord], tuple[float | None, float | None]], start: float, colour: str,
    theme: Theme,
) -> dict[str, Any]:  # fmt: skip
    spans = [(record, *found) for record in records if None not in (found := ends(record))]
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "customdata": [name] * len(spans),
        "x": [round((b or 0) - (a or 0), 6) for _, a, b in spans],
        "base": [round((a or 0) - start, 6) for _, a, _ in spans],
        "y": [record.stream for record, _, _ in spans],
        "text": [f"{(a or 0) - start:.4f}" for _, a, _ in spans],
        "textposition": "none",
        "hovertext": [_said(name, record, (a or 0) - start, (b or 0) - (a or 0)) for record, a, b in spans],
        "hoverinfo": "text",
        "marker": {"color": colour, "line": {"width": 0}, "pattern": {"shape": "/" if name == "Failed" else ""}},
    }


def _said(name: str, record: RequestRecord, after: float, lasted: float) -> str:
    tokens = f"<br>{record.output_tokens} output tokens" if record.output_tokens is not None else ""
    status = "" if record.ok else f"<br>{text(record.status)}"
    when = f"{name}: {figure(lasted)} s from {figure(after)} s"
    return f"<b>request {record.index}</b>, stream {record.stream}<br>{when}{tokens}{status}"


def _window(records: Records, start: float, colour: str) -> list[dict[str, Any]]:
    window = steady_window(records)
    if window is None:
        return []
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": colour, "dash": "dot", "width": 1}}
    return [{**line, "x0": at - start, "x1": at - start} for at in window]


def distribution(metric: str, at: str, records: Mapping[str, Records], provenance: str, theme: Theme = "light") -> Figure:
    """Empirical distribution of a latency, one step line a variant: the share of requests that took at most so long."""
    chosen = LATENCIES[metric]
    title = f"{chosen.title} of every request at {at}"
    traces = [
        trace
        for index, (name, own) in enumerate(records.items())
        if (trace := _steps(name, index, own, chosen, provenance, theme))["x"]
    ]
    if not traces:
        return empty(title, "No request gave this latency.", theme)
    x = {"label": f"{chosen.title} (ms)", "rangemode": "tozero"}
    y = {"label": "Share of requests", "range": [0, 1.02], "tickformat": ".0%"}
    return {"data": traces, "layout": layout(title, x, y, theme, provenance=provenance)}


def _steps(name: str, index: int, records: Records, chosen: Latency, provenance: str, theme: Theme) -> dict[str, Any]:
    found = sorted(1000 * taken for record in _good(records) if (taken := chosen.seconds(record)) is not None)
    points = [(found[place], (place + 1) / len(found)) for place in _places(len(found))]
    look = style(index, theme)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": text(name),
        "customdata": [text(name)] * len(points),
        "x": [value for value, _ in points],
        "y": [share for _, share in points],
        "hovertext": [
            f"<b>{text(name)}</b><br>{share:.1%} took at most {figure(value)} ms<br>{provenance}" for value, share in points
        ],
        "hoverinfo": "text",
        "line": {"color": look.colour, "dash": look.dash, "width": 2, "shape": "hv"},
        "marker": {"color": look.colour},
    }


def _places(count: int) -> list[int]:
    if count <= MOST_POINTS:
        return list(range(count))
    return sorted({round(step * (count - 1) / (MOST_POINTS - 1)) for step in range(MOST_POINTS)})


def _span(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
