"""Charts of tradeoffs: speed per user against total throughput, and quality against speed. Pure data for plotly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.evaluation.document import Evaluation, Level, Quality, VariantResult
from backend.domain.evaluation.soundness import is_sound
from backend.domain.figures import figure, finite
from backend.domain.limits.chart_selection import ParetoPoint, pareto_points, select_variants
from backend.domain.load.load import Load
from backend.present.charts.markers import (
    PER_USER,
    flags,
    folded,
    has_whiskers,
    legend_name,
    marker,
    note,
    places,
    point_title,
    provenance,
    slice_figures,
    slice_whiskers,
    uncounted_variants,
    whisker_key,
)
from backend.present.charts.theme import COLOURS, Figure, Theme, empty, layout, pale, style, text, whiskers

HOW_TO_READ = "Up and to the right is better. The number at a mark is its concurrency in streams."
PARETO = "Speed per user against total throughput"
UNSEEN = "rgba(0,0,0,0)"
MOST_LABELS = 48
PRICE = "Price per million output tokens (USD)"


def pareto(evaluation: Evaluation, theme: Theme = "light", shown: Sequence[str] | None = None) -> Figure:
    """Chart speed per user against total throughput, both in tokens/s, with the Pareto front; other points are pale.

    `shown`: variants with a colour and labels of their own, all by default; others are small marks in one colour.
    """
    # 1. The front.
    points = pareto_points(evaluation)
    silent = uncounted_variants(evaluation, lambda level: level.output_tokens_per_s)
    if not points:
        return empty(PARETO, f"{silent[0]}." if silent else "No throughput was measured.", theme)
    front = sorted((p for p in points if p.on_front), key=lambda p: p.total)
    line = {"color": COLOURS[theme].muted, "width": 1, "dash": "dot", "shape": "linear"}
    edge: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "name": "Pareto front",
        "hoverinfo": "skip",
        "line": line,
    }
    edge |= {"x": [p.total for p in front], "y": [p.per_user for p in front]}
    # 2. The marks of variants with a colour of their own, and of the others.
    names = [result.name for result in evaluation.variants]
    own = [names.index(name) for name in shown if name in names] if shown is not None else list(range(len(names)))
    style_indices = places(select_variants(evaluation, [names[index] for index in own]))
    few = sum(p.variant in own for p in points) <= MOST_LABELS
    marks = [_others(evaluation, [p for p in points if p.variant not in own], theme)]
    marks += [
        _pareto_trace(evaluation, style_indices[names[index]], [p for p in points if p.variant == index], theme, few)
        for index in own
    ]
    # 3. The layout.
    axes = (
        {"label": "Output tokens/s, all streams", "rangemode": "tozero"},
        {"label": PER_USER, "rangemode": "tozero"},
    )
    meta: dict[str, Any] = {
        "mark": "Concurrency (streams)",
        "interval": ["95% from", "95% to"],
        "provenance": provenance(evaluation),
    }
    around = layout(PARETO, *axes, theme, **meta)
    key = [whisker_key(theme)] if has_whiskers(marks) else []
    return {
        "data": [edge, *(mark for mark in marks if mark["x"]), *key],
        "layout": {**around, "annotations": [note(words, theme) for words in silent]},
    }


def _pareto_trace(
    evaluation: Evaluation, place: int, points: list[ParetoPoint], theme: Theme, few: bool
) -> dict[str, Any]:
    """Return one variant's marks. If there are `few`, every mark has its label, else those on the front."""
    colour = style(place, theme).colour
    # The legend takes the colour of the first mark: a variant with a level on the front is not pale there.
    own = sorted(points, key=lambda point: not point.on_front)
    name = evaluation.variants[own[0].variant].name if own else ""
    colours = [colour if point.on_front else pale(colour) for point in own]
    ink = COLOURS[theme].muted
    return {
        **_marks(evaluation, own),
        "mode": "markers+text",
        "name": legend_name(name),
        "textposition": "top center",
        "error_x": _whiskers("output_tokens_per_s", [(point.level, point.total) for point in own], colour),
        "error_y": _whiskers(
            "output_tokens_per_s_per_request", [(point.level, point.per_user) for point in own], colour
        ),
        "textfont": {"color": ink if few else [ink if point.on_front else UNSEEN for point in own], "size": 11},
        "marker": {
            **marker(place, theme, [point.level for point in own]),
            "size": 11,
            "color": colours,
            "line": {"color": colours, "width": 2},
        },
    }


def _whiskers(metric: str, marks: Sequence[tuple[Level, float]], colour: str) -> dict[str, Any]:
    """Return pale whiskers without ends, since marks are close: an interval of each mark's figure over its slices."""
    values, slices = [value for _, value in marks], [slice_figures(metric, level) for level, _ in marks]
    return slice_whiskers(values, slices, pale(colour), width=0)


def _others(evaluation: Evaluation, points: list[ParetoPoint], theme: Theme) -> dict[str, Any]:
    """Return the variants without a colour of their own as small marks without labels."""
    symbols = ["circle" if is_sound(point.level) else "circle-open" for point in points]
    colours = [COLOURS[theme].muted if point.on_front else pale(COLOURS[theme].muted) for point in points]
    count = len({point.variant for point in points})
    return {
        **_marks(evaluation, points),
        "mode": "markers",
        "name": f"{count} other{'' if count == 1 else 's'}",
        "marker": {"symbol": symbols, "size": 6, "color": colours, "line": {"color": colours, "width": 1}},
    }


def _marks(evaluation: Evaluation, points: list[ParetoPoint]) -> dict[str, Any]:
    where = provenance(evaluation)
    return {
        "type": "scatter",
        "cliponaxis": False,
        "customdata": [text(evaluation.variants[point.variant].name) for point in points],
        "x": [point.total for point in points],
        "y": [point.per_user for point in points],
        "text": [str(point.level.concurrency) for point in points],
        "hovertext": [
            f"{point_title(evaluation.variants[point.variant], point.level)}<br>"
            f"{figure(point.per_user)} tokens/s per user,<br>{figure(point.total)} in all"
            f"{flags(point.level)}<br>{where}"
            for point in points
        ],
        "hoverinfo": "text",
    }


def quality_speed(
    evaluation: Evaluation, load: Load | None = None, theme: Theme = "light", *, brief: bool = False
) -> Figure:
    """Chart output tokens/s against mean KL in nats per token, with the price per million output tokens at each mark.

    `load`: by default the highest that all variants with both figures have. If they share none (searches, a server
    that died), each variant is drawn at its own highest load, and its mark names it. `brief`: without prices and
    legend, for a small chart beside one that names the variants.
    """
    # 1. The level of each variant, and its mark.
    levels = _places(evaluation, load)
    shared = len({level.load for level in levels.values()}) == 1 if load is None else True
    title = _quality_title(levels, load, shared)
    marks = [
        _quality_trace(evaluation, index, level, shared, theme, priced=not brief) for index, level in levels.items()
    ]
    if not marks:
        return empty(title, _nothing(evaluation, levels), theme)
    highest = max(trace["x"][0] + trace["error_x"]["array"][0] for trace in marks) or 1.0
    for trace in () if shared else marks:  # a load beside a price is long: it leans inwards, so that no edge cuts it
        trace["textposition"] = "top right" if trace["x"][0] < highest / 2 else "top left"
    # 2. The layout.
    x = {
        "label": "Mean KL divergence (nats per token)",
        "range": [-0.06 * highest, 1.08 * highest],
        "exponentformat": "e",
    }
    label = PRICE if shared else f"Load and {PRICE[:1].lower()}{PRICE[1:]}"
    meta = {"interval": ["95% from", "95% to"], "label": label, "provenance": provenance(evaluation)}
    around = layout(title, x, {"label": "Output tokens/s", "rangemode": "tozero"}, theme, **meta)
    left_out = _left_out(evaluation, levels)
    key = [whisker_key(theme)] if has_whiskers(marks) else []
    around |= {"annotations": [note(left_out, theme)] if left_out else [], "showlegend": not brief}
    return {"data": [*marks, *key], "layout": around}


def _places(evaluation: Evaluation, load: Load | None) -> dict[int, Level]:
    """Return the level to draw for each variant (by index) that has quality and throughput."""
    own = {
        index: {level.load: level for level in result.levels if finite(level.output_tokens_per_s) is not None}
        for index, result in enumerate(evaluation.variants)
        if _divergence(result.quality) is not None
    }
    own = {index: levels for index, levels in own.items() if levels}
    if load is not None:
        return {index: levels[load] for index, levels in own.items() if load in levels}
    shared = set.intersection(*(set(levels) for levels in own.values())) if own else set()
    return {
        index: levels[max(load for load in levels if load in shared or not shared)] for index, levels in own.items()
    }


def _quality_title(levels: Mapping[int, Level], load: Load | None, shared: bool) -> str:
    if not levels and load is None:
        return "Quality against speed"
    shown_load = load or next(iter(levels.values())).load
    return (
        f"Quality against speed at {shown_load.words}" if shared else "Quality against speed, each at its highest load"
    )


def _nothing(evaluation: Evaluation, levels: Mapping[int, Level]) -> str:
    if all(_divergence(result.quality) is None for result in evaluation.variants):
        return "Quality was not measured."
    return f"{_left_out(evaluation, levels)}."


def _left_out(evaluation: Evaluation, levels: Mapping[int, Level]) -> str:
    """Name the variants that are not drawn and say why, so that nobody thinks that they lose nothing."""
    missing: dict[str, list[str]] = {}
    for index, result in enumerate(evaluation.variants):
        if index not in levels:
            missing.setdefault(_why_not(result), []).append(legend_name(result.name))
    return "; ".join(f"{why}: {', '.join(names)}" for why, names in missing.items())


def _why_not(result: VariantResult) -> str:
    if _divergence(result.quality) is None:
        return "Quality not measured"
    if result.levels and all(level.output_tokens_per_s is None for level in result.levels):
        return "Tokens not counted"
    return "Not measured at this load"


def _quality_trace(
    evaluation: Evaluation, index: int, level: Level, shared: bool, theme: Theme, *, priced: bool
) -> dict[str, Any]:
    # A variant without a divergence is at zero: it is the original.
    result = evaluation.variants[index]
    kl = _divergence(result.quality) or 0.0
    quality = result.quality or Quality()
    interval = (quality.served_kl_ci95 if quality.known_as_served else quality.kl_ci95) or (kl, kl)
    place = places(evaluation)[result.name]
    # Say all figures of the mark in words.
    hover = f"{point_title(result, level)}<br>KL {figure(kl)} nats per token,<br>"
    hover += f"{figure(level.output_tokens_per_s)} tokens/s{flags(level)}"
    price = finite(level.price.per_million_output) if level.price else None
    if price is not None:
        hover = f"{hover}<br>{folded(f'{PRICE}: {figure(price)}')}"
    # Write beside the mark what the legend does not say.
    label = ", ".join(
        [*([] if shared else [level.load.words]), *([figure(price)] if price is not None and priced else [])]
    )
    # Draw the mark with the interval of the divergence.
    return {
        "type": "scatter",
        "mode": "markers+text" if label else "markers",
        **({"text": [label], "textposition": "top center"} if label else {}),
        "cliponaxis": False,
        "name": legend_name(result.name),
        "customdata": [text(result.name if shared else f"{result.name}, {level.load.words}")],
        "x": [kl],
        "y": [level.output_tokens_per_s],
        "hovertext": [f"{hover}<br>{provenance(evaluation)}"],
        "hoverinfo": "text",
        "marker": {**marker(place, theme, [level]), "size": 13},
        "error_x": whiskers(
            [max(0.0, interval[1] - kl)], [max(0.0, kl - interval[0])], style(place, theme).colour, thickness=1
        ),
        "error_y": _whiskers(
            "output_tokens_per_s", [(level, level.output_tokens_per_s or 0.0)], style(place, theme).colour
        ),
    }


def _divergence(quality: Quality | None) -> float | None:
    """Return the larger mean KL of the weights and as served; 0 if only the original's weights are known."""
    if quality is None:
        return None
    return 0.0 if quality.known_kl is None and quality.scored == "original" else finite(quality.known_kl)
