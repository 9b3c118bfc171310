"""Charts of resources: memory and processor time of a job, and the phases of each server start. Pure data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backend.domain.evaluation.document import Evaluation
from backend.domain.evaluation.startup import KINDS, PHASES, Startup
from backend.domain.figures import figure
from backend.present.charts.markers import legend_name, provenance
from backend.present.charts.theme import COLOURS, Figure, Marks, Theme, curve, empty, layout, style, text

TITLE = "Memory and processor of this job"
READY = "Time to ready"
PATTERNS = ("", "/", ".", "x", "-", "|")
BAR = 44
"""Pixels: a name and under it the kind of start."""
START_KINDS_TEXT = (
    "The fastest start of each kind. Compiled at start: no compile cache existed. Compile cache loaded: the result of "
    "an earlier start was read. Not compiled: eager mode, which starts fastest and generates more slowly. Servers that "
    "started two at a time are not shown."
)
MEASURED = "resident memory and processor time of the worker and its child processes, read from /proc"


class _Panel(NamedTuple):
    """The line of one panel over time. `style` is the number of its line's style."""

    name: str
    style: int
    axis: str
    values: list[float]
    unit: str


def resources(points: Sequence[tuple[float, float, float]], theme: Theme = "light") -> Figure:
    """Chart a job's memory and processor. `points`: (seconds since the start, resident bytes, percent of one core)."""
    if not points:
        return empty(TITLE, "The first point arrives a few seconds after the start.", theme)
    # Choose units by the last time and the largest size.
    unit, one = ("min", 60.0) if points[-1][0] >= 180 else ("s", 1.0)
    times = [seconds / one for seconds, _, _ in points]
    size, scale = ("GB", 1e9) if max(memory for _, memory, _ in points) >= 1e9 else ("MB", 1e6)
    # Two panels, one above the other, with one axis of time.
    memory = _Panel("Memory", 1, "y", [value / scale for _, value, _ in points], f"{size} at most")
    processor = _Panel("Processor", 2, "y2", [value for _, _, value in points], "% of one core on average")
    drawn = layout(TITLE, {"label": f"Since the start ({unit})", "rangemode": "tozero"}, {}, theme, provenance=MEASURED)
    drawn["xaxis"]["anchor"] = "y2"
    upper = {**drawn["yaxis"], **_axis(f"Memory ({size})", (0.56, 1.0), theme)}
    lower = {**drawn["yaxis"], **_axis("CPU (% of one core)", (0.0, 0.44), theme)}
    drawn["margin"] = {**drawn["margin"], "b": 56}
    return {
        "data": [_trace(memory, times, unit, theme), _trace(processor, times, unit, theme)],
        "layout": {**drawn, "height": 400, "yaxis": upper, "yaxis2": lower, "showlegend": False},
    }


def _axis(label: str, domain: tuple[float, float], theme: Theme) -> dict[str, Any]:
    title = {"text": label, "font": {"size": 12, "color": COLOURS[theme].muted}, "standoff": 8}
    return {"title": title, "domain": list(domain), "rangemode": "tozero"}


def _trace(panel: _Panel, times: list[float], unit: str, theme: Theme) -> dict[str, Any]:
    """Return the line of one panel. `unit` is that of the times."""
    hover_texts = [
        f"{figure(value)} {panel.unit}<br>{figure(time)} {unit} after the start<br>{MEASURED}"
        for time, value in zip(times, panel.values, strict=True)
    ]
    drawn = curve(panel.name, panel.style, theme, Marks(times, panel.values, hover_texts), size=8)
    line, mode = {"color": drawn["line"]["color"], "width": 2}, "lines" if len(times) > 1 else "markers"
    return {**drawn, "mode": mode, "xaxis": "x", "yaxis": panel.axis, "line": line}


def startups(evaluation: Evaluation, theme: Theme = "light") -> Figure:
    """Chart the fastest start per variant and kind (compiled, loaded, eager) in phases. Seconds."""
    starts = fastest_starts(evaluation)
    if not starts:
        return empty(READY, "No server was started here.", theme)
    # One series for each phase, so that the bars add up to the whole start.
    names = ["<br>".join(label.rsplit(", ", 1)) for label, _ in starts]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase,
            "y": names,
            "x": [getattr(start, field) or 0 for _, start in starts],
            "hovertext": [_start_hover(label, start, evaluation) for label, start in starts],
            "hoverinfo": "text",
            "marker": {
                "color": style(number + 1, theme).colour,
                "pattern": {"shape": PATTERNS[number], "solidity": 0.2},
            },
        }
        for number, (field, phase) in enumerate(PHASES.items())
    ]
    # The first start is on top, and each bar adds to the height.
    y = {"type": "category", "autorange": "reversed", "categoryorder": "array", "categoryarray": names}
    drawn = layout(READY, {"label": "Seconds", "rangemode": "tozero"}, y, theme, provenance=provenance(evaluation))
    height = 240 + BAR * len(starts)
    legend = {**drawn["legend"], "traceorder": "normal"}
    return {"data": traces, "layout": {**drawn, "barmode": "stack", "bargap": 0.3, "height": height, "legend": legend}}


def fastest_starts(evaluation: Evaluation) -> list[tuple[str, Startup]]:
    """Return (`AWQ, compile cache loaded`, start): the fastest start of each kind, variant by variant."""
    starts = []
    for result in evaluation.variants:
        fastest = {start.kind: start for start in result.timed_starts}
        starts += [(f"{legend_name(result.name)}, {KINDS[kind]}", start) for kind, start in fastest.items()]
    return starts


def _start_hover(label: str, start: Startup, evaluation: Evaluation) -> str:
    spent = [(name, getattr(start, field)) for field, name in PHASES.items()]
    parts = "<br>".join(f"{name}: {figure(value)} s" for name, value in spent if value is not None)
    again = f"<br>{text(start.compiled_again)}" if start.compiled_again else ""
    return f"<b>{label}</b>: ready after {figure(start.ready_s)} s<br>{parts}{again}<br>{provenance(evaluation)}"


def startups_alt(evaluation: Evaluation) -> str:
    """Return the chart in words."""
    texts = [f"{label} {figure(start.ready_s)} s" for label, start in fastest_starts(evaluation)]
    return f"{READY}: {'; '.join(texts) or 'no server was started here'}."
