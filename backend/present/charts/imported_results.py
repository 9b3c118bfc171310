"""Charts of figures of another load generator together with ours. Pure data for plotly.

Imported figures are open marks on dotted lines, and each hover text says where they come from. A figure is drawn only
if its file has it; a metric that is defined differently says so in its hover text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.domain.evaluation.document import Evaluation
from backend.domain.figures import figure
from backend.domain.imported.imported_result import TITLES, ImportedLatency, ImportedLevel, ImportedResult
from backend.present.charts import evaluation as charts
from backend.present.charts.markers import legend_name
from backend.present.charts.theme import Figure, Marks, Theme, concurrency_axis, curve, empty, layout, style, text

NOTHING = "No imported file has this figure at a known concurrency."


def imported_comparison(
    evaluation: Evaluation | None, results: Sequence[ImportedResult], metric: str, theme: Theme = "light"
) -> Figure:
    """Chart `metric`, one of HEADLINE, against concurrency: of `evaluation`, if any, and of the imported results.

    Median milliseconds or tokens/s.
    """
    # Draw ours, then theirs in the styles that follow.
    ours = _ours(evaluation, metric, theme)
    drawn = [*ours.get("data", ())]
    traces = [_trace(result, len(drawn) + index, metric, theme) for index, result in enumerate(results)]
    theirs = [trace for trace in traces if trace is not None]
    title = f"{TITLES[metric]}, p50 (ms)" if metric.endswith("_ms") else f"{TITLES[metric]}, all streams"
    if not theirs:
        return empty(title, NOTHING, theme)
    # One axis for both, and the provenance of each.
    ticks = sorted({x for trace in [*drawn, *theirs] for x in trace["x"] if x is not None})
    sources = "; ".join(dict.fromkeys(text(result.provenance) for result in results))
    where = ours["layout"]["meta"]["provenance"] if drawn else ""
    meta = {"provenance": f"{where}{'<br>' if where else ''}open marks: {sources}"}
    y = {"label": title, "rangemode": "tozero"}
    return {"data": [*drawn, *theirs], "layout": layout(title, concurrency_axis(ticks), y, theme, **meta)}


def _ours(evaluation: Evaluation | None, metric: str, theme: Theme) -> Figure:
    if evaluation is None:
        return {}
    if metric == "output_tokens_per_s":
        return charts.throughput(evaluation, metric, theme)
    return charts.latency(evaluation, metric, theme=theme)


def _trace(result: ImportedResult, index: int, metric: str, theme: Theme) -> dict[str, Any] | None:
    # Levels without the figure have no mark.
    points = [
        (level, value)
        for level in sorted(result.levels, key=lambda level: level.concurrency or 0)
        if level.concurrency and (value := _value(level, metric)) is not None
    ]
    if not points:
        return None
    # Open marks and dotted lines tell results of other tools apart.
    mark_style, name = style(index, theme), f"{result.name}, {result.provenance}"
    x, y = [level.concurrency for level, _ in points], [value for _, value in points]
    hover_texts = [_hover_text(result, level, metric, value) for level, value in points]
    return {
        **curve(text(name), index, theme, Marks(x, y, hover_texts)),
        "name": f"{legend_name(result.name)}, imported",
        "line": {"color": mark_style.colour, "dash": "dot", "width": 1},
        "marker": {
            "color": mark_style.colour,
            "symbol": f"{mark_style.symbol}-open",
            "size": 11,
            "line": {"color": mark_style.colour, "width": 2},
        },
    }


def _value(level: ImportedLevel, metric: str) -> float | None:
    points = getattr(level, metric)
    return points.p50 if isinstance(points, ImportedLatency) else points


def _hover_text(result: ImportedResult, level: ImportedLevel, metric: str, value: float) -> str:
    unit = "ms" if metric.endswith("_ms") else "tokens/s"
    fits = {definition.fit for definition in result.definitions if definition.metric == metric}
    differs = "<br>defined differently from ours" if "differs" in fits else ""
    return (
        f"<b>{text(result.name)}</b> at {level.load.words}<br>{TITLES[metric]}: {figure(value)} {unit}{differs}"
        f"<br>{text(result.provenance)}"
    )
