"""Throughput against concurrency, with the points at which a portfolio switches."""

from __future__ import annotations

from typing import Any

from backend.domain.evaluation.document import Evaluation
from backend.domain.what_if.portfolio import Portfolio
from backend.present.charts import evaluation as evaluation_charts
from backend.present.charts.theme import COLOURS, Figure, Theme, pale


def throughput_with_switches(document: Evaluation, portfolio: Portfolio, theme: Theme = "light") -> Figure:
    """Chart output tokens/s against concurrency, with a band from `down` to `up` for each switch."""
    figure = evaluation_charts.throughput(document, "output_tokens_per_s", theme)
    bands: list[dict[str, Any]] = [
        {
            "type": "rect",
            "x0": switch.down,
            "x1": switch.up,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "fillcolor": pale(COLOURS[theme].muted),
            "opacity": 0.4,
            "line": {"width": 0},
            "layer": "below",
        }
        for switch in portfolio.switches
    ]
    return {**figure, "layout": {**figure["layout"], "shapes": [*figure["layout"].get("shapes", []), *bands]}}
