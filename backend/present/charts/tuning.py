"""The stacks of a search in one chart: latency at the lowest load against tokens/s at the highest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.domain.figures import figure, streams
from backend.domain.tuning.ranking import Ranked, Standing
from backend.present.charts.theme import COLOURS, Figure, Theme, empty, layout, style, text

GROUPS: tuple[tuple[str, frozenset[Standing], int], ...] = (
    ("winner", frozenset({"winner"}), 3),
    ("within limits", frozenset({"front", "same", "too close", "slower"}), 1),
    ("over a limit", frozenset({"over limit", "nearest"}), 2),
)
"""Name of each group in the legend, its standings, and the number of its style; the original has style 0."""
TITLE = "Latency and throughput of each stack"


def latency_and_throughput(
    ranked: Sequence[Ranked], loads: Sequence[int], baseline: str, theme: Theme = "light"
) -> Figure:
    """Chart every measured stack; up and to the left is better. `baseline` is the key of the original."""
    low, high = min(loads), max(loads)
    # 1. The marks of each group, the original apart.
    traces = []
    own = [one for one in ranked if one.trial.key == baseline]
    others = [one for one in ranked if one.trial.key != baseline]
    groups = [("original", own, 0)]
    groups += [(name, [one for one in others if one.standing in kinds], index) for name, kinds, index in GROUPS]
    for name, members, index in groups:
        points = [point for one in members if (point := _point(one, low, high)) is not None]
        if points:
            traces.append(_trace(name, index, points, theme))
    if not traces:
        return empty(TITLE, "Nothing has been measured yet.", theme)
    # 2. Axes from zero, so that distances are factors.
    x = {"label": f"Median latency at {streams(low)} (ms)", "rangemode": "tozero"}
    y = {"label": f"Output tokens/s at {streams(high)}", "rangemode": "tozero"}
    return {
        "data": traces,
        "layout": layout(TITLE, x, y, theme, provenance="measured", better="up and to the left"),
    }


def _point(one: Ranked, low: int, high: int) -> tuple[float, float, str] | None:
    first, last = one.trial.at(low), one.trial.at(high)
    if first is None or last is None or first.latency_ms is None:
        return None
    hover = f"{text(one.trial.name)}<br>{figure(first.latency_ms)} ms, {figure(last.tokens_per_s)} tokens/s"
    return first.latency_ms, last.tokens_per_s, f"{hover}<br>{text(one.words)}"


def _trace(name: str, index: int, points: Sequence[tuple[float, float, str]], theme: Theme) -> dict[str, Any]:
    own = style(index, theme)
    size = 15 if name == "winner" else 10
    marker = {"color": own.colour, "symbol": "star" if name == "winner" else own.symbol, "size": size}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "customdata": [name] * len(points),
        "x": [x for x, _, _ in points],
        "y": [y for _, y, _ in points],
        "hovertext": [words for _, _, words in points],
        "hoverinfo": "text",
        "marker": {**marker, "line": {"color": COLOURS[theme].panel, "width": 1}},
    }
