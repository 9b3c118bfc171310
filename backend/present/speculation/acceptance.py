"""Charts of speculative decoding: acceptance by position, tokens per step, and measured against possible speed-up.

Pure data for plotly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.evaluation.document import Evaluation
from backend.domain.evaluation.evidence.speculation_gains import (
    DraftedLevel,
    PredictedGains,
    SpeculationGain,
    drafted_levels,
    measured_gains,
)
from backend.domain.figures import figure
from backend.domain.load.load import Load
from backend.present.charts.markers import legend_name, places, provenance, whisker_key
from backend.present.charts.theme import COLOURS, Figure, Marks, Theme, curve, empty, layout, style, text, whiskers

NOTHING = "No tokens were drafted, or the server reported none."
BY_POSITION, LENGTHS, BY_KIND = (
    "Accepted by position",
    "Tokens per step with a draft",
    "Tokens per step by kind of prompt",
)
GAIN = "Theoretical and measured speed-up"


def by_position(evaluation: Evaluation, load: Load, theme: Theme = "light") -> Figure:
    """Chart the share of drafts whose first, second, ... token was accepted."""
    x = {"label": "Position in the draft", "dtick": 1}
    y = {"label": "Share of drafts accepted", "range": [0, 1.02], "tickformat": ".0%"}
    series = [
        _line(evaluation, drafted, dict(enumerate(drafted.drafting.rates, 1)), "position {x}: {y:.0%} accepted", theme)
        for drafted in drafted_levels(evaluation, load)
        if drafted.drafting.rates
    ]
    return _drawn(f"{BY_POSITION}, {load.words}", series, x, y, evaluation, theme)


def lengths(evaluation: Evaluation, load: Load, theme: Theme = "light") -> Figure:
    """Chart how many tokens a step with a draft gave: the accepted ones and the model's own."""
    x, y = (
        {"label": "Tokens per step", "dtick": 1},
        {"label": "Share of drafts", "rangemode": "tozero", "tickformat": ".0%"},
    )
    series = [
        _bars(evaluation, drafted, dict(enumerate(drafted.drafting.lengths, 1)), "{y:.0%} gave {x} tokens", theme)
        for drafted in drafted_levels(evaluation, load)
        if drafted.drafting.lengths
    ]
    return _drawn(f"{LENGTHS}, {load.words}", series, x, y, evaluation, theme)


def by_kind(evaluation: Evaluation, load: Load, theme: Theme = "light") -> Figure:
    """Chart tokens per step by kind of prompt, over all steps of measured answers, with or without a draft."""
    x, y = {"label": "Kind of prompt", "type": "category"}, {"label": "Tokens per step", "rangemode": "tozero"}
    series = []
    for drafted in drafted_levels(evaluation, load):
        if drafted.drafting.steps:
            known = {
                text(kind): steps.length for kind, steps in drafted.drafting.steps.items() if steps.length is not None
            }
            series.append(_bars(evaluation, drafted, known, "{x}: {y:.2f} tokens per step", theme))
    return _drawn(f"{BY_KIND}, {load.words}", series, x, y, evaluation, theme)


def gain(evaluation: Evaluation, theme: Theme = "light", predicted: PredictedGains | None = None) -> Figure:
    """Chart two bars per variant and load, the speed-up that acceptance allows (pale) and the measured one.

    A diamond marks the prediction of a payoff map.
    """
    rows = measured_gains(evaluation)
    if not rows:
        return empty(GAIN, "The same variant without speculation was not measured.", theme)
    # The axes, and what both bars of a row have in common.
    x, y = (
        {"label": "Variant and load", "type": "category"},
        {"label": "Speed-up over no speculation", "rangemode": "tozero"},
    )
    names = [f"{legend_name(row.drafted.result.name)}<br>{row.drafted.level.load.words}" for row in rows]
    colours = [style(places(evaluation)[row.drafted.result.name], theme).colour for row in rows]
    line = {"color": COLOURS[theme].muted, "width": 1}
    hover_texts = [f"theoretical {figure(row.allowed)}x, measured {figure(row.measured)}x" for row in rows]
    shared: dict[str, Any] = {"type": "bar", "x": names, "hovertext": hover_texts, "hoverinfo": "text"}
    # The pale bar is what acceptance allows.
    allowed = {
        **shared,
        "name": "if drafting cost nothing",
        "y": [row.allowed for row in rows],
        "customdata": ["allowed"] * len(rows),
        "marker": {"color": COLOURS[theme].grid, "line": line},
    }
    # The full bar is what was measured, with its interval.
    reach = _whiskers([(row.measured, row.interval) for row in rows], COLOURS[theme].muted, thickness=1)
    measured = {
        **shared,
        "name": "measured",
        "y": [row.measured for row in rows],
        "customdata": ["measured"] * len(rows),
        "marker": {"color": colours},
        "error_y": reach,
    }
    # Diamonds are predictions; a dotted line is no gain.
    marks = _marks(rows, names, predicted or {}, theme)
    drawn = layout(GAIN, x, y, theme, provenance=provenance(evaluation))
    shape = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {**line, "dash": "dot"}}
    return {
        "data": [allowed, measured, *marks, whisker_key(theme)],
        "layout": {**drawn, "barmode": "group", "shapes": [shape]},
    }


def _marks(
    rows: Sequence[SpeculationGain], names: Sequence[str], predicted: PredictedGains, theme: Theme
) -> list[dict[str, Any]]:
    """Mark the predicted speed-up at the measured acceptance; its whiskers are the map's own error."""
    # Only some rows have a prediction.
    keys = [(row.drafted.result.name, row.drafted.level.load.key) for row in rows]
    known = [(name, predicted[key]) for name, key in zip(names, keys, strict=True) if key in predicted]
    if not known:
        return []
    # Draw the diamonds with their whiskers.
    marker = {"symbol": "diamond-open", "size": 11, "color": COLOURS[theme].ink}
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "predicted by the payoff map",
            "x": [name for name, _ in known],
            "y": [prediction.gain for _, prediction in known],
            "customdata": ["predicted"] * len(known),
            "marker": marker,
            "error_y": _whiskers(
                [(prediction.gain, prediction.interval) for _, prediction in known], COLOURS[theme].ink
            ),
            "hovertext": [f"predicted {figure(prediction.gain)}x" for _, prediction in known],
            "hoverinfo": "text",
        }
    ]


def _whiskers(
    points: Sequence[tuple[float, tuple[float, float] | None]], colour: str, **line_options: int
) -> dict[str, Any]:
    """Return whiskers for `points`: figures with their intervals."""
    ends = [(value, *(interval or (value, value))) for value, interval in points]
    return whiskers(
        [high - value for value, _, high in ends], [value - low for value, low, _ in ends], colour, **line_options
    )


def _line(
    evaluation: Evaluation, drafted: DraftedLevel, points: Mapping[Any, float], words: str, theme: Theme
) -> dict[str, Any]:
    """Draw `points` (x -> y); `words` is the hover text's format, with x and y."""
    hover_texts = [words.format(x=x, y=y) for x, y in points.items()]
    name, values = drafted.result.name, [round(y, 5) for y in points.values()]
    drawn = curve(text(name), places(evaluation)[name], theme, Marks(list(points), values, hover_texts), size=9)
    return {**drawn, "name": legend_name(name), "hoverinfo": "text+name"}


def _bars(
    evaluation: Evaluation, drafted: DraftedLevel, points: Mapping[Any, float], words: str, theme: Theme
) -> dict[str, Any]:
    drawn = _line(evaluation, drafted, points, words, theme)
    del drawn["mode"], drawn["line"]
    return {**drawn, "type": "bar", "marker": {"color": drawn["marker"]["color"]}}


def _drawn(
    title: str, series: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], evaluation: Evaluation, theme: Theme
) -> Figure:
    if not series:
        return empty(title, NOTHING, theme)
    return {
        "data": series,
        "layout": {**layout(title, x, y, theme, provenance=provenance(evaluation)), "barmode": "group"},
    }
