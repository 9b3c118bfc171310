"""Draw charts in the theme of the browser, and the live chart of a running evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import plotly.graph_objects as graph
import streamlit as st

from app.navigation import page_key
from backend.domain.figures import counted, streams
from backend.domain.figures import figure as number
from backend.present.charts import alt_text
from backend.present.charts.markers import style_indices
from backend.present.charts.theme import Figure, Theme, concurrency_axis, empty, layout, style, text

TITLE = "Output tokens/s so far (approximate)"
CONFIG = {"displaylogo": False, "displayModeBar": True, "modeBarButtons": [["toImage"]], "scrollZoom": False}
"""The camera is the only button and always visible, since a finger cannot hover."""


def theme() -> Theme:
    """Return the theme of the browser; light if it did not say."""
    return "dark" if st.context.theme.type == "dark" else "light"


def show(figure: Figure, key: str, words: str | None = None, *, file: bool = True) -> None:
    """Draw a chart with its alternative text (`words`, or its own) and, with `file`, a download of its points."""
    # Draw the chart with its text.
    name = alt_text.file_name(figure)
    config = {**CONFIG, "toImageButtonOptions": {"format": "png", "scale": 2, "filename": name}}
    st.plotly_chart(
        unvalidated(figure), key=page_key(key), theme=None, config=config, alt=words or alt_text.alt(figure)
    )
    # Offer its points as a file.
    if figure["data"] and file:
        st.download_button(
            "CSV",
            lambda: alt_text.csv(figure),
            f"{name}.csv",
            "text/csv",
            type="tertiary",
            icon=":material/download:",
            on_click="ignore",
            key=page_key(f"{key}-csv"),
            help="The points of this chart. The camera above it saves a PNG.",
        )


def with_height(figure: Figure, height: int) -> Figure:
    """Return the chart with this height in pixels."""
    return {**figure, "layout": {**figure["layout"], "height": height}}


def with_y_title(figure: Figure, words: str) -> Figure:
    """Return the chart with other words at its y axis: a low chart has room for few."""
    axis = figure["layout"]["yaxis"]
    axis = {**axis, "title": {**axis["title"], "text": words}}
    return {**figure, "layout": {**figure["layout"], "yaxis": axis}}


def unvalidated(figure: Figure) -> graph.Figure:
    """Return the chart without plotly's check of every property, which takes half of a page's time. Tests check
    instead."""
    return graph.Figure(figure["data"], figure["layout"], _validate=False)


def live_throughput(points: Sequence[dict[str, Any]], variants: Sequence[str], theme: Theme = "light") -> Figure:
    """Return the chart of the means of the `point` events so far, a line per variant. They are approximate."""
    # 1. Group the rates by variant and concurrency.
    groups: dict[str, dict[int, list[float]]] = {}
    for point in points:
        if (rate := point.get("output_tokens_per_s")) is not None:
            levels = groups.setdefault(str(point["variant"]), {})
            levels.setdefault(int(point["concurrency"]), []).append(float(rate))
    if not groups:
        return empty(TITLE, "The first points arrive when the servers are up.", theme)
    # 2. Draw a line per variant.
    names = [*variants, *sorted(groups.keys() - set(variants))]
    places = dict(zip(names, style_indices(["", *names[1:]]), strict=True))
    traces = [_trace(name, places[name], sorted(groups[name].items()), theme) for name in names if name in groups]
    measured = sorted({concurrency for levels in groups.values() for concurrency in levels})
    y = {"label": "Output tokens/s", "rangemode": "tozero"}
    meta = {"better": "higher", "provenance": "approximate, counted while the evaluation was running"}
    return {"data": traces, "layout": layout(TITLE, concurrency_axis(measured), y, theme, **meta)}


def _trace(name: str, place: int, points: Sequence[tuple[int, list[float]]], theme: Theme) -> dict[str, Any]:
    line_style = style(place, theme)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": text(name),
        "customdata": [text(name)] * len(points),
        "x": [concurrency for concurrency, _ in points],
        "y": [fmean(rates) for _, rates in points],
        "hovertext": [
            f"{text(name)} at {streams(concurrency)}<br>about {number(fmean(rates))} tokens/s, mean of "
            f"{counted(len(rates), 'run')} so far"
            for concurrency, rates in points
        ],
        "hoverinfo": "text",
        "line": {"color": line_style.colour, "dash": line_style.dash, "width": 2},
        "marker": {"color": line_style.colour, "symbol": line_style.symbol, "size": 9},
    }
