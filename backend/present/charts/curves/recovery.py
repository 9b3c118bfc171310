"""Chart of the loss during recovery, from the manifest or a running job. Pure data for plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.figures import figure
from backend.present.charts.theme import Figure, Marks, Theme, curve, empty, layout, ringed

TITLE = "Loss during recovery"
LOSSES = {"kl": "KL divergence", "next token": "Next-token loss"}
"""Titles of the manifest's `objective`."""
MEASURED = "measured during recovery, on calibration text that is used neither for calibration nor for scoring"
TRAINING, VALIDATION, BEST = "Training, mean since the previous point", "Validation", "Best"


def loss_curve(
    points: Sequence[Mapping[str, Any]], objective: str, theme: Theme = "light", *, best_step: int | None = None
) -> Figure:
    """Chart training and validation loss against the step, in nats per token.

    `points` have `step`, `validation` and `training` (None at the start). `best_step` is the step whose weights are
    saved.
    """
    if not points:
        return empty(TITLE, "The first point arrives when the models are loaded.", theme)
    # Validation at every point, training where it is known, and a ring around the saved weights.
    loss = LOSSES[objective]
    trained = [point for point in points if point["training"] is not None]
    best = [point for point in points if point["step"] == best_step]
    traces = [_trace(VALIDATION, 1, points, "validation", loss, theme)]
    traces += [_trace(TRAINING, 2, trained, "training", loss, theme)] if trained else []
    traces += [ringed(_trace(BEST, 0, best, "validation", loss, theme))] if best else []
    # Both axes begin at zero.
    x, y = {"label": "Step", "rangemode": "tozero"}, {"label": f"{loss} (nats/token)", "rangemode": "tozero"}
    return {"data": traces, "layout": layout(TITLE, x, y, theme, provenance=MEASURED)}


def _trace(
    name: str, index: int, points: Sequence[Mapping[str, Any]], field: str, loss: str, theme: Theme
) -> dict[str, Any]:
    x, y = [int(point["step"]) for point in points], [float(point[field]) for point in points]
    hover_texts = [
        f"<b>{name}</b> at step {step}<br>{loss}: {figure(value)} nats per token<br>{MEASURED}"
        for step, value in zip(x, y, strict=True)
    ]
    return curve(name, index, theme, Marks(x, y, hover_texts))
