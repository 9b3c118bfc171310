"""What a job's processes used over time, as a chart: memory above, processor below. Pure data for plotly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.domain.figures import figure
from backend.present.charts.theme import COLOURS, Figure, Theme, empty, layout, style

TITLE = "Memory and processor of this job"
MEASURED = "resident memory and processor time of the worker and all it started, read from /proc"


def resources(points: Sequence[tuple[float, float, float]], theme: Theme = "light") -> Figure:
    """`points`: (seconds since the start, resident bytes, percent of one core)."""
    if not points:
        return empty(TITLE, "The first point arrives a few seconds after the start.", theme)
    unit, one = ("min", 60.0) if points[-1][0] >= 180 else ("s", 1.0)
    at = [seconds / one for seconds, _, _ in points]
    size, scale = ("GB", 1e9) if max(memory for _, memory, _ in points) >= 1e9 else ("MB", 1e6)
    memory = _trace("Memory", "y", at, [value / scale for _, value, _ in points], f"{size} at most", unit, 0, theme)
    cpu = _trace("Processor", "y2", at, [value for _, _, value in points], "% of one core on average", unit, 1, theme)
    drawn = layout(TITLE, {"label": f"Since the start ({unit})", "rangemode": "tozero"}, {}, theme, provenance=MEASURED)
    drawn["xaxis"]["anchor"] = "y2"
    upper = {**drawn["yaxis"], **_panel(f"Memory ({size})", (0.56, 1.0), theme)}
    lower = {**drawn["yaxis"], **_panel("CPU (% of one core)", (0.0, 0.44), theme)}
    drawn["margin"] = {**drawn["margin"], "b": 56}
    return {"data": [memory, cpu], "layout": {**drawn, "height": 400, "yaxis": upper, "yaxis2": lower, "showlegend": False}}


def _panel(label: str, domain: tuple[float, float], theme: Theme) -> dict[str, Any]:
    title = {"text": label, "font": {"size": 12, "color": COLOURS[theme].muted}, "standoff": 8}
    return {"title": title, "domain": list(domain), "rangemode": "tozero"}


def _trace(
    name: str, axis: str, x: list[float], y: list[float], what: str, unit: str, index: int, theme: Theme
) -> dict[str, Any]:
    look = style(index + 1, theme)
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": name,
        "customdata": [name] * len(x),
        "xaxis": "x",
        "yaxis": axis,
        "x": x,
        "y": y,
        "hovertext": [
            f"{figure(value)} {what}<br>{figure(at)} {unit} after the start<br>{MEASURED}" for at, value in zip(x, y, strict=True)
        ],
        "hoverinfo": "text",
        "line": {"color": look.colour, "width": 2},
        "marker": {"color": look.colour, "symbol": look.symbol, "size": 8},
    }
