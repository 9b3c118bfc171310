"""Chart of a payoff map: the speed-up over acceptance and draft length with its break-even, a panel per concurrency.

Pure data for plotly. Colours show log2(gain), so that twice as fast is as strong as half as fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from backend.domain.figures import figure, streams
from backend.domain.planner.draft_payoff import LENGTHS, DraftShape, PayoffMap
from backend.domain.planner.roofline import acceptance_from_rate
from backend.present.charts.theme import COLOURS, Figure, Theme, layout, text
from backend.present.words.payoff_map import provenance, subject

ACCEPTANCES = tuple(place / 20 for place in range(21))
SLOWER, FASTER = "#d55e00", "#0072b2"
TICKS = (0.25, 0.5, 1.0, 2.0, 4.0)
OWN = "this draft"
COLUMNS, PANEL, GAP = 2, 190, 0.16
"""Panels per row; their height in pixels; the gap between them as a share of the whole."""
NAME, BAR, BELOW = 20, 56, 124
"""Pixels of a panel's name, from the panels to the colour bar, and from the panels to the lower edge."""


def payoff_map(payoff: PayoffMap, draft: DraftShape, theme: Theme = "light", lengths: Sequence[float] = ()) -> Figure:
    """Chart where speculation with the draft is faster (blue) or slower (orange), and the break-even line between.

    `lengths`: measured mean tokens per step with 1, 2, ... draft tokens; they place the draft on the map.
    """
    # The frame that all panels share.
    title, rows = f"{subject(payoff, draft)}: gain", -(-len(payoff.streams) // COLUMNS)
    meta = {"provenance": provenance(payoff)}
    around = layout(title, {}, {}, theme, **meta)
    # One panel for each concurrency, with axes of its own.
    traces, notes = [], []
    for place, concurrency in enumerate(payoff.streams):
        number, domain = str(place + 1) if place else "", _domain(place, rows)
        x, y = (
            {"domain": domain[end], "anchor": f"{other}{number}", **_axis(end)} for end, other in ((0, "y"), (1, "x"))
        )
        axes = layout(title, x, y, theme)
        around |= {f"xaxis{number}": axes["xaxis"], f"yaxis{number}": axes["yaxis"]}
        panel = _Panel(payoff, draft, concurrency, number)
        traces += [_cells(panel), _line(panel, theme)]
        if lengths:
            traces.append(_own(panel, lengths, theme))
        notes.append(_name(streams(concurrency), domain, theme))
    # Leave room for the names above and the colour bar below.
    inside, top = rows * (PANEL + 40), around["margin"]["t"] + NAME
    around["margin"] = {**around["margin"], "t": top, "b": BELOW}
    around |= {"annotations": notes, "coloraxis": _colours(theme, -BAR / inside), "height": top + inside + BELOW}
    below_bar = {"y": -(BAR + 38) / inside, "yref": "paper", "yanchor": "top"}
    around["legend"] = {**around["legend"], **below_bar}
    return {"data": traces, "layout": around}


class _Panel(NamedTuple):
    """The map at one concurrency. `number` is that of its axes; the first panel's axes have none."""

    payoff: PayoffMap
    draft: DraftShape
    concurrency: int
    number: str

    @property
    def name(self) -> str:
        return streams(self.concurrency)

    @property
    def axes(self) -> dict[str, Any]:
        return {"xaxis": f"x{self.number}", "yaxis": f"y{self.number}"}


def _domain(place: int, rows: int) -> tuple[list[float], list[float]]:
    """Return a panel's range of the width and of the height, as shares."""
    row, column = divmod(place, COLUMNS)
    wide, high = (1 - GAP * (COLUMNS - 1)) / COLUMNS, (1 - 2 * GAP * (rows - 1)) / rows
    left, top = column * (wide + GAP), 1 - row * (high + 2 * GAP)
    return [left, left + wide], [max(0.0, top - high), top]


def _axis(end: int) -> dict[str, Any]:
    if end:
        return {"label": "Draft tokens", "tickvals": list(LENGTHS), "range": [LENGTHS[0] - 0.5, LENGTHS[-1] + 0.5]}
    return {"label": "Acceptance", "tickformat": ".0%", "range": [-0.025, 1.025], "tickvals": [0, 0.5, 1]}


def _cells(panel: _Panel) -> dict[str, Any]:
    gains = [
        [panel.payoff.gain(panel.concurrency, tokens, panel.draft, acceptance) for acceptance in ACCEPTANCES]
        for tokens in LENGTHS
    ]
    return {
        "type": "heatmap",
        "x": list(ACCEPTANCES),
        "y": list(LENGTHS),
        **panel.axes,
        "z": [[math.log2(gain) for gain in row] for row in gains],
        "customdata": gains,
        "coloraxis": "coloraxis",
        "hovertemplate": f"{panel.name}, %{{x:.0%}} accepted,<br>"
        "%{y} draft tokens: %{customdata:.2f}x<extra></extra>",
        "name": panel.name,
        "showlegend": False,
    }


def _line(panel: _Panel, theme: Theme) -> dict[str, Any]:
    # Only numbers of draft tokens that pay at some acceptance are on the line.
    thresholds = [(panel.payoff.break_even_at(panel.concurrency, tokens, panel.draft), tokens) for tokens in LENGTHS]
    paying = [(acceptance, tokens) for acceptance, tokens in thresholds if acceptance is not None]
    ink = COLOURS[theme].ink
    # Draw the line with what it means in words.
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [acceptance for acceptance, _ in paying],
        "y": [k for _, k in paying],
        **panel.axes,
        "name": "break-even",
        "legendgroup": "break-even",
        "showlegend": not panel.number,
        "line": {"color": ink, "width": 2},
        "marker": {"color": ink, "size": 6, "symbol": "circle"},
        "customdata": [text(f"break-even at {panel.name}")] * len(paying),
        "hoverinfo": "text",
        "hovertext": [
            f"{panel.name}, {k} draft tokens:<br>pays from {acceptance:.0%} acceptance" for acceptance, k in paying
        ],
    }


def _own(panel: _Panel, lengths: Sequence[float], theme: Theme) -> dict[str, Any]:
    """Return marks of the draft itself, at the constant acceptance that gives its tokens per step."""
    # Find where each measured length is on the map.
    guesses = range(1, len(lengths) + 1)
    x = [acceptance_from_rate((length - 1) / k, k) for k, length in zip(guesses, lengths, strict=True)]
    gains = [
        panel.payoff.gain_at(panel.concurrency, k, panel.draft, length)
        for k, length in zip(guesses, lengths, strict=True)
    ]
    # Draw the marks with the gain in words.
    marker = {
        "color": COLOURS[theme].panel,
        "size": 9,
        "symbol": "diamond",
        "line": {"color": COLOURS[theme].ink, "width": 2},
    }
    return {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": list(guesses),
        **panel.axes,
        "name": OWN,
        "legendgroup": OWN,
        "showlegend": not panel.number,
        "marker": marker,
        "hoverinfo": "text",
        "customdata": [text(f"{OWN} at {panel.name}")] * len(x),
        "hovertext": [
            f"{OWN}, {panel.name}, {k} draft tokens: {gain:.2f}x" for k, gain in zip(guesses, gains, strict=True)
        ],
    }


def _name(words: str, domain: tuple[list[float], list[float]], theme: Theme) -> dict[str, Any]:
    font = {"size": 13, "color": COLOURS[theme].ink}
    where = {
        "x": domain[0][0],
        "y": domain[1][1],
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "bottom",
    }
    return {"text": words, "showarrow": False, "font": font, **where}


def _colours(theme: Theme, y: float) -> dict[str, Any]:
    # Colours are even in the logarithm: twice as fast is as far from 1 as half as fast.
    colours, most = COLOURS[theme], math.log2(TICKS[-1])
    bar = {
        "orientation": "h",
        "thickness": 10,
        "len": 0.8,
        "x": 0.5,
        "xanchor": "center",
        "y": y,
        "yanchor": "top",
        "tickvals": [math.log2(gain) for gain in TICKS],
        "ticktext": [f"{figure(gain, 2)}x" for gain in TICKS],
        "tickfont": {"color": colours.muted},
        "tickangle": 0,
        "outlinewidth": 0,
    }
    middle = "#f7f7f7" if theme == "light" else "#20262e"
    return {"cmin": -most, "cmax": most, "colorscale": [[0, SLOWER], [0.5, middle], [1, FASTER]], "colorbar": bar}
