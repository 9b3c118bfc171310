"""The distribution of a latency from a sample of its quantiles, for a file that must stay small. Pure data for plotly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.domain.figures import figure
from backend.present.charts.parts import legend_name
from backend.present.charts.theme import Figure, Theme, empty, layout, style, text
from backend.present.report import Spread

TITLES = {"ttft_ms": "Time to first token", "tpot_ms": "Inter-token latency", "client_latency_ms": "Client latency"}


def distribution(
    metric: str, at: str, spreads: Mapping[str, Spread], looks: Mapping[str, int], provenance: str, theme: Theme = "light"
) -> Figure:
    """One step line a variant, in its look (`parts.places`): the share of its requests that took at most so many milliseconds."""
    title = f"{TITLES[metric]} of every request at {at}"
    traces = [_steps(name, looks[name], spread, theme) for name, spread in spreads.items() if spread.values]
    if not traces:
        return empty(title, "No request gave this latency.", theme)
    x = {"label": f"{TITLES[metric]} (ms)", "rangemode": "tozero"}
    y = {"label": "Share of requests", "range": [0, 1.02], "tickformat": ".0%"}
    return {"data": traces, "layout": layout(title, x, y, theme, provenance=provenance)}


def _steps(name: str, place: int, spread: Spread, theme: Theme) -> dict[str, Any]:
    """A sampled value stands for its place among all of them: value k of n is at k / n, the ends exactly."""
    look, drawn = style(place, theme), len(spread.values)
    places = [round(step * (spread.count - 1) / max(1, drawn - 1)) for step in range(drawn)]
    shares = [round((place + 1) / spread.count, 5) for place in places]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": legend_name(name),
        "customdata": [text(name)] * drawn,
        "x": [round(value, 4) for value in spread.values],
        "y": shares,
        "hovertext": [f"{share:.1%} took at most {figure(value)} ms" for value, share in zip(spread.values, shares, strict=True)],
        "hoverinfo": "text+name",
        "line": {"color": look.colour, "dash": look.dash, "width": 2, "shape": "hv"},
        "marker": {"color": look.colour},
    }
