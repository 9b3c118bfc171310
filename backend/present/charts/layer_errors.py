"""Chart of the error of each quantized or pruned linear, from the manifest. Pure data for plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.figures import figure
from backend.present.charts.theme import Figure, Marks, Theme, curve, empty, layout, text
from backend.present.words.layer_summary import NUMBERED

MEASURED = "measured on the calibration text during the job"
WHOLE = "decoder layer"
"""Kind of a row whose name ends in a number: library engines report the error of a layer, not of its linears."""


def layer_errors(layers: Sequence[Mapping[str, Any]], theme: Theme = "light", done: str = "quantized") -> Figure:
    """Chart the relative error (%) of each linear's output against its layer number, one series per kind of linear.

    `done` says what was done to them (`layer_summary.done`); empty if no weight was changed.
    """
    series = _series(layers) if done else {}
    if not series:
        return empty("Error of each linear", "No weight was changed: every linear is the original.", theme)
    traces = [_trace(index, kind, rows, theme) for index, (kind, rows) in enumerate(series.items())]
    x, y = {"label": "Layer", "dtick": _tick(layers)}, {"label": "Relative error (%)", "rangemode": "tozero"}
    title = f"Error of each {done} {'layer' if set(series) == {WHOLE} else 'linear'}"
    drawn = layout(title, x, y, theme, provenance=MEASURED)
    return {"data": traces, "layout": drawn}


def _series(layers: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, Mapping[str, Any]]]]:
    """Return kind of linear -> (layer number, row); a name without a number uses its index in the list."""
    by_kind: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for place, row in enumerate(layers):
        name = str(row.get("name", ""))
        numbered = NUMBERED.search(name)
        kind = (name[numbered.end() :] or WHOLE) if numbered else name
        by_kind.setdefault(kind, []).append((int(numbered.group(1)) if numbered else place, row))
    return by_kind


def _tick(layers: Sequence[Mapping[str, Any]]) -> int:
    """Return the tick distance in whole layers, for at most about twenty ticks."""
    highest = max(number for rows in _series(layers).values() for number, _ in rows)
    return max(1, round(highest / 20))


def _trace(index: int, kind: str, rows: Sequence[tuple[int, Mapping[str, Any]]], theme: Theme) -> dict[str, Any]:
    x, y = [number for number, _ in rows], [100 * float(row["relative_error"]) for _, row in rows]
    return curve(text(kind), index + 1, theme, Marks(x, y, [_hover(row) for _, row in rows]), width=1, size=8)


def _hover(row: Mapping[str, Any]) -> str:
    plain = row.get("rtn_relative_error")
    against = f"<br>plain rounding: {figure(100 * float(plain))} %" if plain is not None else ""
    own = f"<b>{text(row.get('name', ''))}</b><br>relative error: {figure(100 * float(row['relative_error']))} %"
    zeros = f"<br>zeros: {figure(100 * float(row['zeros']))} %" if row.get("zeros") is not None else ""
    return f"{own}{against}{zeros}<br>{MEASURED}"
