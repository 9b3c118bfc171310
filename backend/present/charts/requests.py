"""Charts of single requests: every request of a run over time, and the distribution of a latency. Pure data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backend.domain.evaluation.metrics import steady_window
from backend.domain.figures import figure
from backend.domain.load.records import RequestRecord
from backend.present.charts.markers import inert, legend_name
from backend.present.charts.theme import COLOURS, Figure, Theme, empty, layout, pale, style, text, upright
from backend.present.report_content import LATENCIES, Spread, evenly

Records = Sequence[RequestRecord]
MOST_POINTS, LEAST_POINTS = 1600, 100
"""Most points of all distributions on a chart, and least of each; more are reduced to evenly spaced quantiles."""


def timeline(name: str, load_words: str, records: Records, provenance: str, theme: Theme = "light") -> Figure:
    """Chart every request of one run, a line per stream: waiting for the first token, then answering.

    Time is in seconds since the first request. `load_words` is the load in words. Warm-up is shaded; the steady window
    is between the dotted lines. A failed request and an empty answer have colours of their own.
    """
    # 1. The requests by what became of them.
    title = f"Requests at {load_words}: {legend_name(name)}"
    sent = [record for record in records if record.sent is not None]
    if not sent:
        return empty(title, "No request was sent.", theme)
    start = min(record.sent for record in sent if record.sent is not None)
    colours, streams = COLOURS[theme], len({record.stream for record in sent})
    waiting, answering, bad = (style(index, theme).colour for index in (3, 1, 2))
    failed = [record for record in sent if not record.ok and not record.warm]
    wordless = [record for record in sent if record.ok and not record.warm and record.first_content is None]
    # 2. Their bars.
    traces = [
        _bars("Warm-up", [record for record in sent if record.warm], lambda r: (r.sent, r.end), start, colours.muted),
        _bars("Waiting for the first token", _good(sent), lambda r: (r.sent, r.first_content), start, waiting),
        _bars("Answering", _good(sent), lambda r: (r.first_content, r.end), start, answering),
        _bars("Empty answer", wordless, lambda r: (r.sent, r.end), start, style(4, theme).colour),
        _bars("Failed", failed, lambda r: (r.sent, r.end), start, bad),
    ]
    # 3. The layout, as high as there are streams.
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
    name: str,
    records: Records,
    ends: Callable[[RequestRecord], tuple[float | None, float | None]],
    start: float,
    colour: str,
) -> dict[str, Any]:
    # Leave out requests without both times.
    timed = [(record, *ends(record)) for record in records]
    spans = [(record, a - start, b - a) for record, a, b in timed if a is not None and b is not None]
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "customdata": [name] * len(spans),
        "x": [round(lasted, 6) for _, _, lasted in spans],
        "base": [round(after, 6) for _, after, _ in spans],
        "y": [record.stream for record, _, _ in spans],
        "text": [f"{after:.4f}" for _, after, _ in spans],
        "textposition": "none",
        "hovertext": [_hover_text(name, *span) for span in spans],
        "hoverinfo": "text",
        "marker": {"color": colour, "line": {"width": 0}, "pattern": {"shape": "/" if name == "Failed" else ""}},
    }


def _hover_text(name: str, record: RequestRecord, after: float, lasted: float) -> str:
    tokens = f"<br>{record.output_tokens} output tokens" if record.output_tokens is not None else ""
    status = "" if record.ok else f"<br>{text(record.status)}"
    when = f"{name}: {figure(lasted)} s from {figure(after)} s"
    return f"<b>request {record.index}</b>, stream {record.stream}<br>{when}{tokens}{status}"


def _window(records: Records, start: float, colour: str) -> list[dict[str, Any]]:
    # Without a window nothing is shaded.
    window = steady_window(records)
    if window is None:
        return []
    # Shade the time before the window, and draw both of its ends.
    shade = {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": 0,
        "x1": window[0] - start,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "fillcolor": pale(colour),
        "line": {"width": 0},
        "opacity": 0.4,
    }
    return [shade, *(upright(end - start, colour, width=1) for end in window)]


def distribution(
    metric: str,
    load_words: str,
    latencies: Mapping[str, Sequence[float]],
    style_indices: Mapping[str, int],
    provenance: str,
    theme: Theme = "light",
) -> Figure:
    """Chart the empirical distribution of a latency, one step line per variant: the share of requests up to each value.

    `latencies`: milliseconds of each good request by variant, ascending. `style_indices`: from `markers.places`. Many
    variants have fewer points each.
    """
    # Share the points of the chart among the variants.
    most = max(LEAST_POINTS, MOST_POINTS // max(1, len(latencies)))
    traces = [
        _steps(variant, style_indices[variant], values, most, provenance, theme)
        for variant, values in latencies.items()
        if values
    ]
    return _shares(f"{LATENCIES[metric]} at {load_words}", metric, traces, provenance, theme)


def sampled(
    metric: str,
    load_words: str,
    spreads: Mapping[str, Spread],
    style_indices: Mapping[str, int],
    provenance: str,
    theme: Theme = "light",
) -> Figure:
    """Chart the same from samples of the quantiles, for a file that must stay small."""
    traces = [
        _sampled_steps(name, style_indices[name], spread, theme) for name, spread in spreads.items() if spread.values
    ]
    return _shares(f"{LATENCIES[metric]} of every request at {load_words}", metric, traces, provenance, theme)


def _shares(title: str, metric: str, traces: list[dict[str, Any]], provenance: str, theme: Theme) -> Figure:
    """Return the figure of step lines, or an empty one."""
    if not traces:
        return empty(title, "No request gave this latency.", theme)
    x = {"label": f"{LATENCIES[metric]} (ms)", "rangemode": "tozero"}
    y = {"label": "Share of requests", "range": [0, 1.02], "tickformat": ".0%"}
    return {"data": traces, "layout": layout(title, x, y, theme, provenance=provenance)}


def _steps(name: str, place: int, values: Sequence[float], most: int, provenance: str, theme: Theme) -> dict[str, Any]:
    drawn = evenly(len(values), most)
    hover = f"<b>{inert(text(name))}</b><br>%{{y:.1%}} took at most %{{x:.4~g}} ms<br>{inert(provenance)}"
    x, y = [values[number] for number in drawn], [(number + 1) / len(values) for number in drawn]
    return _step_line(name, place, x, y, theme, hovertemplate=f"{hover}<extra></extra>")


def _sampled_steps(name: str, place: int, spread: Spread, theme: Theme) -> dict[str, Any]:
    """Return a step line of samples: value k of n is at k / n, the ends exactly."""
    x, places = [round(value, 4) for value in spread.values], evenly(spread.count, len(spread.values))
    y = [round((place + 1) / spread.count, 5) for place in places]
    hover = [f"{share:.1%} took at most {figure(value)} ms" for value, share in zip(spread.values, y, strict=True)]
    return _step_line(name, place, x, y, theme, hovertext=hover, hoverinfo="text+name")


def _step_line(name: str, place: int, x: list[float], y: list[float], theme: Theme, **hover: Any) -> dict[str, Any]:
    """Return a step line in the style `place`; `hover` is plotly's hover setting for its points."""
    mark_style = style(place, theme)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": legend_name(name),
        "customdata": [text(name)] * len(x),
        "x": x,
        "y": y,
        "line": {"color": mark_style.colour, "dash": mark_style.dash, "width": 2, "shape": "hv"},
        "marker": {"color": mark_style.colour},
        **hover,
    }
