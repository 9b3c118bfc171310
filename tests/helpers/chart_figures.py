"""The charts of an evaluation by name, and the traces of a chart that have marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backend.present.charts import evaluation as charts
from backend.present.charts import tradeoffs
from backend.present.charts.theme import Figure

DRAW: dict[str, Callable[..., Figure]] = {
    "latency": charts.latency,
    "throughput": charts.throughput,
    "price": charts.price,
    "pareto": tradeoffs.pareto,
    "quality_speed": tradeoffs.quality_speed,
}


def marked(figure: Figure) -> list[dict[str, Any]]:
    return [trace for trace in figure["data"] if "marker" in trace]
