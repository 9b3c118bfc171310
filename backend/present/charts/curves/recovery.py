"""The loss of a recovery step by step, as a chart: pure data for plotly, after the manifest's curve or a running job's
points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.figures import figure
from backend.present.charts.theme import Figure, Theme, curve, empty, layout, ringed

TITLE = "Loss during recovery"
LOSSES = {"kl": "KL divergence", "next token": "Next-token loss"}
"""By the manifest's `objective`."""
MEASURED = "measured while recovering, on calibration text that neither calibrates nor scores"
TRAINING, VALIDATION, BEST = "Training, mean since the point before", "Validation", "Kept"


def loss_curve(
    points: Sequence[Mapping[str, Any]], objective: str, theme: Theme = "light", *, best_step: int | None = None
) -> Figure:
    """Loss against the step, one series for training and one for validation. Nats a token.

    `points` have `step`, `validation` and `training` (None at the start). `best_step` is the one whose weights are
    kept.
    """
    if not points:
        return empty(TITLE, "The first point arrives when the models are loaded.", theme)
    loss = LOSSES[objective]
    trained = [point for point in points if point["training"] is not None]
    best = [point for point in points if point["step"] == best_step]
    traces = [_trace(VALIDATION, 1, points, "validation", loss, theme)]
    traces += [_trace(TRAINING, 2, trained, "training", loss, theme)] if trained else []
    traces += [ringed(_trace(BEST, 0, best, "validation", loss, theme))] if best else []
    x, y = {"label": "Step", "rangemode": "tozero"}, {"label": f"{loss} (nats/token)", "rangemode": "tozero"}
    return {"data": traces, "layout": layout(TITLE, x, y, theme, provenance=MEASURED)}


def _trace(
    name: str, index: int, points: Sequence[Mapping[str, Any]], field: str, loss: str, theme: Theme
) -> dict[str, Any]:
    x, y = [int(point["step"]) for point in points], [float(point[field]) for point in points]
    hover_texts = [
        f"<b>{name}</b> at step {step}<br>{loss}: {figure(value)} nats a token<br>{MEASURED}"
        for step, value in zip(x, y, strict=True)
    ]
    return curve(name, index, theme, x, y, hover_texts)
