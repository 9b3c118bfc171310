"""Charts and tables as the report's template and script take them. Knows nothing of what they show.

A figure is embedded once, in the colours of the light theme; the script turns them into those of the dark one by `palette`, which
halves the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from backend.domain.figures import figure
from backend.present.charts import evaluation
from backend.present.charts.theme import COLOURS, Figure, Theme, pale
from backend.present.tables.evaluation import Cell

Draw = Callable[[Theme], Figure]
AnyRow = Mapping[str, Cell]


class Plot(NamedTuple):
    """`choices`: what a reader can choose (a percentile, a load, or `any` alone) -> words and figure."""

    title: str
    choices: dict[str, dict[str, Any]]

    def embedded(self) -> dict[str, Any]:
        return {"title": self.title, "choices": self.choices}


PROVENANCE = "\x1f"
"""At the end of a hover text stands for the provenance of the whole chart, which the script puts there."""


def one(draw: Draw) -> dict[str, Any]:
    """One choice of a chart."""
    light = draw("light")
    return {"alt": evaluation.alt(light), "figure": _short(light)}


def _short(drawn: Figure) -> Figure:
    """Without the same provenance at every mark; it stands once in the layout."""
    end = f"<br>{drawn['layout'].get('meta', {}).get('provenance', '')}"
    return {**drawn, "data": [_shortened(trace, end) for trace in drawn["data"]]}


def _shortened(trace: dict[str, Any], end: str) -> dict[str, Any]:
    said = trace.get("hovertext")
    if not isinstance(said, list):
        return trace
    return {**trace, "hovertext": [text.removesuffix(end) + PROVENANCE * text.endswith(end) for text in said]}


def palette() -> dict[str, str]:
    """Colour of the light theme -> that of the dark one, for every colour that a chart uses."""
    light, dark = COLOURS["light"], COLOURS["dark"]
    pairs = [(light.ink, dark.ink), (light.muted, dark.muted), (light.grid, dark.grid), (light.panel, dark.panel)]
    series = list(zip(light.series, dark.series, strict=True))
    return dict([*pairs, *series, *((pale(a), pale(b)) for a, b in [*pairs, *series])])


def table(found: Sequence[AnyRow], first: str = "Variant") -> dict[str, Any]:
    """{columns, rows}: columns of {text, number}, rows of {starts, cells}; `starts` where the cell under `first` is a new one."""
    names = list(dict.fromkeys(name for row in found for name in row))
    columns = [{"text": name, "number": all(_is_figure(row.get(name)) for row in found)} for name in names]
    leads = [None, *(row.get(first) for row in found)]
    cells = [[written(row.get(name)) for name in names] for row in found]
    starts = [before != row.get(first) for before, row in zip(leads, found, strict=False)]
    return {"columns": columns, "rows": [{"starts": start, "cells": row} for start, row in zip(starts, cells, strict=True)]}


def _is_figure(value: Cell) -> bool:
    return not isinstance(value, str) or (value[:1].isdigit() and value.endswith("%"))


def written(value: Cell) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return min(figure(value, 4), f"{value:,.15g}", key=len)
    return f"{value:,}" if isinstance(value, int) else value
