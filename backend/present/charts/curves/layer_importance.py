"""Chart of what each layer adds to a model, from the manifest of a pruning of whole layers. Pure data for plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.figures import figure
from backend.present.charts.theme import Figure, Marks, Theme, curve, empty, layout, ringed

TITLE = "Importance of each layer"
SCALES = {
    "similarity": "1 - cosine of input and output",
    "loss": "KL divergence without it (nats/token)",
}
"""Titles of the manifest's `importance`."""
MEASURED = "measured on the calibration text during the job"
ALL, REMOVED = "All layers", "Removed"


def layer_importance(ranking: Sequence[Mapping[str, Any]], importance: str, theme: Theme = "light") -> Figure:
    """Chart the importance of each layer of the original against its number, with a ring around those removed.

    `ranking` has `importance` and `removed` of each layer, in the order of the model.
    """
    if not ranking:
        return empty(TITLE, "No layer was ranked.", theme)
    numbered = list(enumerate(ranking))
    traces = [_trace(ALL, 1, numbered, theme)]
    traces.append(ringed(_trace(REMOVED, 2, [(number, row) for number, row in numbered if row["removed"]], theme)))
    x = {"label": "Layer of the original", "dtick": max(1, round(len(ranking) / 20))}
    y = {"label": SCALES[importance], "rangemode": "tozero"}
    return {"data": traces, "layout": layout(TITLE, x, y, theme, provenance=MEASURED)}


def _trace(name: str, index: int, rows: Sequence[tuple[int, Mapping[str, Any]]], theme: Theme) -> dict[str, Any]:
    x, y = [number for number, _ in rows], [float(row["importance"]) for _, row in rows]
    hover_texts = [
        f"<b>layer {number}</b>{', removed' if row['removed'] else ''}<br>{figure(float(row['importance']))}"
        f"<br>{MEASURED}"
        for number, row in rows
    ]
    return curve(name, index, theme, Marks(x, y, hover_texts), width=1, size=8)
