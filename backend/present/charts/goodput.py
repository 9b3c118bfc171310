"""Chart of goodput against the load. Pure data for plotly; `domain.limits.goodput` has the definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.figures import figure
from backend.domain.limits.goodput import CountWithin, VariantLoad, level_goodputs
from backend.present.charts.markers import (
    flags,
    legend_name,
    levels,
    marker,
    places,
    point_title,
    provenance,
    whisker_key,
)
from backend.present.charts.theme import (
    Figure,
    Marks,
    Theme,
    concurrency_axis,
    curve,
    empty,
    layout,
    style,
    text,
    whiskers,
)

TITLE = "Goodput: requests/s within the limits"


def goodput(evaluation: Evaluation, counts: Mapping[VariantLoad, CountWithin], theme: Theme = "light") -> Figure:
    """Chart requests per second within the limits against concurrency, with the 95% Wilson interval of their share."""
    traces = [_trace(evaluation, result, counts, theme) for result in evaluation.variants]
    drawn = [trace for trace in traces if trace["x"]]
    if not drawn:
        return empty(TITLE, "No single requests were saved.", theme)
    y = {"label": "Requests/s within the limits", "rangemode": "tozero"}
    meta = {"better": "higher", "interval": ["95% from", "95% to"], "provenance": provenance(evaluation)}
    return {
        "data": [*drawn, whisker_key(theme)],
        "layout": layout(TITLE, concurrency_axis(levels(evaluation)), y, theme, **meta),
    }


def _trace(
    evaluation: Evaluation, result: VariantResult, counts: Mapping[VariantLoad, CountWithin], theme: Theme
) -> dict[str, Any]:
    # What was within the limits at each level.
    goodputs, place, where = level_goodputs(result, counts), places(evaluation)[result.name], provenance(evaluation)
    x, y = [point.level.concurrency for point in goodputs], [point.requests_per_s for point in goodputs]
    hover_texts = [
        f"{point_title(result, point.level)}<br>{figure(point.requests_per_s)} requests/s,<br>"
        f"{point.share:.1%} of them within the limits{flags(point.level)}<br>{where}"
        for point in goodputs
    ]
    # Intervals as distances from the marks.
    above = [point.requests_per_s_interval[1] - point.requests_per_s for point in goodputs]
    below = [point.requests_per_s - point.requests_per_s_interval[0] for point in goodputs]
    return {
        **curve(text(result.name), place, theme, Marks(x, y, hover_texts)),
        "name": legend_name(result.name),
        "marker": marker(place, theme, [point.level for point in goodputs]),
        "error_y": whiskers(above, below, style(place, theme).colour, thickness=1, width=3),
    }
