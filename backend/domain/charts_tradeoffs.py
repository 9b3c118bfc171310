"""Charts of two things at once: speed per user against total throughput, and quality against speed. Pure data for plotly."""

from __future__ import annotations

import math
from html import unescape
from typing import Any, NamedTuple

from backend.domain.charts_parts import at, finite, flags, is_sound, legend_name, levels, marker, provenance
from backend.domain.charts_theme import COLOURS, Figure, Theme, empty, layout, pale, style, text
from backend.domain.evaluation import Evaluation, Level, Quality
from backend.domain.wording import figure, streams

PARETO = "Speed per user against total throughput"


def pareto(evaluation: Evaluation, theme: Theme = "light") -> Figure:
    """Speed for one user against what the machine gives in all, tokens/s both; the front is drawn, the dominated dimmed."""
    points = pareto_points(evaluation)
    if not points:
        return empty(PARETO, "No throughput was measured.", theme)
    front = sorted((p for p in points if p.on_front), key=lambda p: p.total)
    line = {"color": COLOURS[theme].muted, "width": 1, "dash": "dot", "shape": "linear"}
    edge: dict[str, Any] = {"type": "scatter", "mode": "lines", "name": "Pareto front", "hoverinfo": "skip", "line": line}
    edge |= {"x": [p.total for p in front], "y": [p.per_user for p in front]}
    marks = [_pareto_trace(evaluation, index, points, theme) for index in range(len(evaluation.variants))]
    axes = (
        {"label": "Output tokens/s, all streams", "rangemode": "tozero"},
        {"label": "Output tokens/s per user", "rangemode": "tozero"},
    )
    meta: dict[str, Any] = {"mark": "Concurrency (streams)", "provenance": provenance(evaluation)}
    return {"data": [edge, *(mark for mark in marks if mark["x"])], "layout": layout(PARETO, *axes, theme, **meta)}


class ParetoPoint(NamedTuple):
    """`total` and `per_user` in output tokens/s. On the front: no other point is at least as good in both and better in one."""

    variant: int
    level: Level
    total: float
    per_user: float
    on_front: bool


def pareto_points(evaluation: Evaluation) -> list[ParetoPoint]:
    """Every level with a per-request throughput. Levels that are not comparable are shown, but never on the front."""
    found = [
        ParetoPoint(index, level, level.output_tokens_per_s, level.output_tokens_per_s_per_request, False)
        for index, result in enumerate(evaluation.variants)
        for level in result.levels
        if level.output_tokens_per_s_per_request is not None
        and math.isfinite(level.output_tokens_per_s_per_request + level.output_tokens_per_s)
    ]
    sound = [point for point in found if is_sound(point.level)]
    return [
        point._replace(on_front=is_sound(point.level) and not any(_dominates(other, point) for other in sound)) for point in found
    ]


def _dominates(a: ParetoPoint, b: ParetoPoint) -> bool:
    return a.total >= b.total and a.per_user >= b.per_user and (a.total > b.total or a.per_user > b.per_user)


def _pareto_trace(evaluation: Evaluation, index: int, points: list[ParetoPoint], theme: Theme) -> dict[str, Any]:
    result = evaluation.variants[index]
    # The legend takes the colour of the first mark: a variant with a level on the front is not pale there.
    own = sorted((point for point in points if point.variant == index), key=lambda point: not point.on_front)
    where = provenance(evaluation)
    mark = marker(index, theme, [point.level for point in own])
    colours = [style(index, theme).colour if point.on_front else pale(style(index, theme).colour) for point in own]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "cliponaxis": False,
        "name": legend_name(result.name),
        "customdata": [text(result.name)] * len(own),
        "x": [point.total for point in own],
        "y": [point.per_user for point in own],
        "text": [str(point.level.concurrency) for point in own],
        "textposition": "top center",
        "textfont": {"color": COLOURS[theme].muted, "size": 11},
        "hovertext": [
            f"{at(result, point.level)}<br>{figure(point.per_user)} tokens/s per user, {figure(point.total)} in all"
            f"{flags(point.level)}<br>{where}"
            for point in own
        ],
        "hoverinfo": "text",
        "marker": {**mark, "size": 11, "color": colours, "line": {"color": colours, "width": 2}},
    }


def quality_speed(evaluation: Evaluation, concurrency: int | None = None, theme: Theme = "light") -> Figure:
    """What speed costs in quality at one level (the highest by default): mean KL, nats a token, against output tokens/s."""
    at = concurrency if concurrency is not None else max(levels(evaluation), default=1)
    title = f"Quality against speed at {streams(at)}"
    marks = [trace for index in range(len(evaluation.variants)) if (trace := _quality_trace(evaluation, index, at, theme))]
    if not marks:
        return empty(title, "Quality was not measured.", theme)
    highest = max(trace["x"][0] + trace["error_x"]["array"][0] for trace in marks) or 1.0
    x = {"label": "Mean KL divergence (nats a token)", "range": [-0.06 * highest, 1.08 * highest], "exponentformat": "e"}
    meta = {"interval": ["95% from", "95% to"], "provenance": provenance(evaluation)}
    figure = layout(title, x, {"label": "Output tokens/s", "rangemode": "tozero"}, theme, **meta)
    return {
        "data": marks,
        "layout": {**figure, "annotations": _left_out(evaluation, {unescape(trace["customdata"][0]) for trace in marks}, theme)},
    }


def _left_out(evaluation: Evaluation, drawn: set[str], theme: Theme) -> list[dict[str, Any]]:
    """Names the variants that have no place here, so that nobody takes them for free of cost."""
    missing = [legend_name(result.name) for result in evaluation.variants if result.name not in drawn]
    if not missing:
        return []
    note = {"text": f"Quality not measured: {', '.join(missing)}", "xref": "paper", "yref": "paper", "x": 0, "y": 1.08}
    return [{**note, "xanchor": "left", "showarrow": False, "font": {"size": 11, "color": COLOURS[theme].muted}}]


def _quality_trace(evaluation: Evaluation, index: int, concurrency: int, theme: Theme) -> dict[str, Any] | None:
    result = evaluation.variants[index]
    level = next((level for level in result.levels if level.concurrency == concurrency), None)
    kl = _divergence(result.quality)
    if level is None or kl is None:
        return None
    interval = (result.quality and result.quality.kl_ci95) or (kl, kl)
    said = f"{at(result, level)}<br>KL {figure(kl)} nats a token, {figure(level.output_tokens_per_s)} tokens/s{flags(level)}"
    return {
        "type": "scatter",
        "mode": "markers",
        "cliponaxis": False,
        "name": legend_name(result.name),
        "customdata": [text(result.name)],
        "x": [kl],
        "y": [level.output_tokens_per_s],
        "hovertext": [f"{said}<br>{provenance(evaluation)}"],
        "hoverinfo": "text",
        "marker": {**marker(index, theme, [level]), "size": 13},
        "error_x": _bar(max(0.0, interval[1] - kl), max(0.0, kl - interval[0]), style(index, theme).colour),
    }


def _divergence(quality: Quality | None) -> float | None:
    """0 by definition where the served weights are the original's."""
    if quality is None:
        return None
    return 0.0 if quality.kl_mean is None and quality.scored == "original" else finite(quality.kl_mean)


def _bar(above: float, below: float, colour: str) -> dict[str, Any]:
    return {"type": "data", "symmetric": False, "array": [above], "arrayminus": [below], "color": colour, "thickness": 1}
