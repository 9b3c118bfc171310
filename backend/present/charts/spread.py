"""The distribution of a latency from a sample of its quantiles, for a file that must stay small. Pure data for plotly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.domain.figures import figure
from backend.present.charts.requests import shares, steps
from backend.present.charts.theme import Figure, Theme
from backend.present.report import LATENCIES, Spread, evenly


def distribution(
    metric: str, at: str, spreads: Mapping[str, Spread], looks: Mapping[str, int], provenance: str, theme: Theme = "light"
) -> Figure:
    """One step line a variant, in its look (`parts.places`): the share of its requests that took at most so many milliseconds."""
    traces = [_steps(name, looks[name], spread, theme) for name, spread in spreads.items() if spread.values]
    return shares(f"{LATENCIES[metric]} of every request at {at}", metric, traces, provenance, theme)


def _steps(name: str, place: int, spread: Spread, theme: Theme) -> dict[str, Any]:
    """A sampled value stands for its place among all of them: value k of n is at k / n, the ends exactly."""
    places = evenly(spread.count, len(spread.values))
    y = [round((place + 1) / spread.count, 5) for place in places]
    said = [f"{share:.1%} took at most {figure(value)} ms" for value, share in zip(spread.values, y, strict=True)]
    return steps(name, place, [round(value, 4) for value in spread.values], y, theme, hovertext=said, hoverinfo="text+name")
