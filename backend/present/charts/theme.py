"""Style of charts: palette, symbols, dashes and axes for light and dark.

Colours are those of Okabe and Ito (Color Universal Design, 2008), which people with any common kind of colour vision
can tell apart. Each series also has a marker symbol and a dash, so that colour is never the only sign.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

Theme = Literal["light", "dark"]
Figure = dict[str, Any]
"""A plotly figure as plain data: `{"data": [...], "layout": {...}}`."""


class Colours(NamedTuple):
    ink: str
    muted: str
    grid: str
    panel: str
    series: tuple[str, ...]


COLOURS: dict[str, Colours] = {
    "light": Colours(
        "#1c2430",
        "#5b6675",
        "#e3e7ec",
        "#ffffff",
        ("#111111", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    ),
    "dark": Colours(
        "#e8ecf1",
        "#a3adba",
        "#2c343f",
        "#171c23",
        ("#f5f5f5", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00"),
    ),
}
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "hexagon", "triangle-down")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
TITLE_WIDTH = 42
"""Characters per line of a title."""
HEIGHT = 380
"""Pixels."""
LEGEND_SHARE = 0.3
"""Most of a chart's height that its legend takes."""
MOST_TICKS = 16
"""Most ticks of concurrency over the width of a phone."""
FONT = "'Source Sans', system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


class Style(NamedTuple):
    """Style of one series: no two of the first 56 share all three."""

    colour: str
    symbol: str
    dash: str


def style(index: int, theme: Theme) -> Style:
    """Return the style with number `index`; 0, the original's, is black, or white on the dark theme."""
    series = COLOURS[theme].series
    return Style(series[index % len(series)], SYMBOLS[index % len(SYMBOLS)], DASHES[index % len(DASHES)])


class Marks(NamedTuple):
    """The places of the marks of a line, and the hover text of each."""

    x: list[Any]
    y: list[Any]
    hover_texts: list[str]


def curve(name: str, index: int, theme: Theme, marks: Marks, *, width: int = 2, size: int = 7) -> dict[str, Any]:
    """Return a trace of marks on a line in the style with number `index`."""
    mark_style = style(index, theme)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "customdata": [name] * len(marks.x),
        "x": marks.x,
        "y": marks.y,
        "hovertext": marks.hover_texts,
        "hoverinfo": "text",
        "line": {"color": mark_style.colour, "dash": mark_style.dash, "width": width},
        "marker": {"color": mark_style.colour, "symbol": mark_style.symbol, "size": size},
    }


def ringed(drawn: dict[str, Any]) -> dict[str, Any]:
    """Turn a trace of `curve` into rings around other marks."""
    colour = drawn["line"]["color"]
    marker = {"color": colour, "symbol": "circle-open", "size": 16, "line": {"color": colour, "width": 2}}
    return {**drawn, "mode": "markers", "marker": marker}


def whiskers(above: list[float], below: list[float], colour: str, **line_options: int) -> dict[str, Any]:
    """Return whiskers from `below` to `above` each mark; `line_options`: `thickness` and `width` in pixels."""
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "color": colour, **line_options}


def upright(x: float, colour: str, **line_options: int) -> dict[str, Any]:
    """Return a dotted vertical line over the whole height; `line_options`: its `width` in pixels."""
    line = {"color": colour, "dash": "dot", **line_options}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def pale(colour: str) -> str:
    """Return the colour `#rrggbb` at 40 % opacity, for marks in the background."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.4)"


def text(value: object) -> str:
    """Escape a user's text: plotly interprets some HTML tags in any text."""
    return str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def broken(title: str) -> str:
    """Break a long title into two lines: a phone shows about forty characters."""
    if len(title) <= TITLE_WIDTH or " " not in title:
        return title
    place = title.rfind(" ", 0, TITLE_WIDTH + 1)
    place = place if place > 0 else title.find(" ")
    return f"{title[:place]}<br>{title[place + 1 :]}"


def unbroken(title: str) -> str:
    return title.replace("<br>", " ")


def layout(title: str, x: dict[str, Any], y: dict[str, Any], theme: Theme, **meta: Any) -> dict[str, Any]:
    """Return a chart's layout. `meta`: provenance, which direction is better, what marks and whiskers are."""
    colours, title = COLOURS[theme], broken(title)
    top = 72 if "<br>" in title else 52
    return {
        "title": {
            "text": title,
            "x": 0.0,
            "xref": "container",
            "xanchor": "left",
            "pad": {"l": 12},
            "font": {"size": 15},
        },
        "font": {"family": FONT, "size": 12, "color": colours.ink},
        "paper_bgcolor": colours.panel,
        "plot_bgcolor": colours.panel,
        "margin": {"l": 64, "r": 20, "t": top, "b": 64},
        "height": HEIGHT,
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "bgcolor": colours.panel, "font": {"color": colours.ink, "family": FONT}},
        # At the lower edge, where plotly makes as much room below the axis as its rows take at the width of the screen;
        # of many rows it scrolls.
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "maxheight": LEGEND_SHARE,
            "font": {"color": colours.ink},
        },
        "showlegend": True,
        "xaxis": _axis(x, colours),
        "yaxis": _axis(y, colours),
        "meta": meta,
        # An empty template: plotly's own would add seven kilobytes to each figure and is overruled by the above.
        "template": {},
    }


def _axis(changes: dict[str, Any], colours: Colours) -> dict[str, Any]:
    base = {
        "gridcolor": colours.grid,
        "linecolor": colours.muted,
        "tickfont": {"color": colours.muted},
        "zeroline": False,
        "automargin": True,
        "fixedrange": False,
    }
    axis = {**base, **changes}
    title = axis.pop("label", "")
    return {**axis, "title": {"text": title, "font": {"size": 12, "color": colours.muted}, "standoff": 8}}


def concurrency_axis(levels: Sequence[int]) -> dict[str, Any]:
    """Return a logarithmic axis with ticks only at measured levels; of many, only those that fit."""
    ends = (math.log10(min(levels)) - 0.12, math.log10(max(levels)) + 0.12) if levels else (0.0, 1.0)
    ticks = _spaced_ticks(levels, (ends[1] - ends[0]) / MOST_TICKS)
    return {
        "label": "Concurrency (streams)",
        "type": "log",
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [str(level) for level in ticks],
        "range": list(ends),
    }


def _spaced_ticks(levels: Sequence[int], least: float) -> list[int]:
    """Return the first level, and each that is at least `least` decades above the one before."""
    ticks: list[int] = []
    for level in sorted(levels):
        if not ticks or len(levels) <= MOST_TICKS // 2 or math.log10(level / ticks[-1]) >= least:
            ticks.append(level)
    return ticks


def empty(title: str, message: str, theme: Theme) -> Figure:
    """Return a figure that says why there is nothing to draw."""
    colours = COLOURS[theme]
    hidden = {"visible": False}
    note = {"text": message, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False}
    note |= {"font": {"size": 14, "color": colours.muted}}
    return {"data": [], "layout": {**layout(title, hidden, hidden, theme), "annotations": [note], "showlegend": False}}
