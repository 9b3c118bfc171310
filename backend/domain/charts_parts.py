"""What every chart of an evaluation shares: markers, hover text, provenance, and a chart's words for who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import unescape
from typing import Any

from backend.domain.charts_theme import Figure, Theme, style, text
from backend.domain.evaluation import Evaluation, Level, VariantResult
from backend.domain.wording import figure, hardware_line, streams, versions_line

LEGEND_WIDTH = 24
"""Characters."""


def levels(evaluation: Evaluation) -> list[int]:
    """Every concurrency that any variant has, rising."""
    return sorted({level.concurrency for result in evaluation.variants for level in result.levels})


def provenance(evaluation: Evaluation) -> str:
    """Where, when and with what, as hover text."""
    hardware, versions = text(hardware_line(evaluation.hardware)), text(versions_line(evaluation.versions))
    return f"measured {text(evaluation.measured_at)}<br>on {hardware}<br>with {versions}"


def legend_name(name: str) -> str:
    """Short enough for a legend on a phone; symbol and colour tell two long names apart, and hover text has the whole."""
    return text(name if len(name) <= LEGEND_WIDTH else f"{name[: LEGEND_WIDTH - 1]}…")


def finite(value: float | None) -> float | None:
    """None for what cannot be drawn."""
    return value if value is not None and math.isfinite(value) else None


def at(result: VariantResult, level: Level) -> str:
    return f"<b>{text(result.name)}</b> at {streams(level.concurrency)}"


def flags(level: Level) -> str:
    limited = "<br>held back by the load generator: not the server's figure" if level.client_limited else ""
    failed = f"<br>{level.invocation_errors} of {level.invocations} requests failed" if level.invocation_errors else ""
    return limited + failed


def marker(index: int, theme: Theme, hollow: Sequence[bool]) -> dict[str, Any]:
    """Hollow where the client held the server back: such a point is not the server's figure."""
    look = style(index, theme)
    symbols = [f"{look.symbol}-open" if is_hollow else look.symbol for is_hollow in hollow]
    return {"color": look.colour, "symbol": symbols, "size": 9, "line": {"color": look.colour, "width": 2}}


def alt(figure_: Figure) -> str:
    """A figure in words: its title, then each series with its first and last point."""
    drawn = figure_["layout"]
    title = drawn["title"]["text"]
    if not figure_["data"]:
        return f"{title}: {drawn['annotations'][0]['text']}"
    series = [_series_words(trace, drawn) for trace in figure_["data"] if trace.get("marker")]
    notes = [unescape(note["text"]) for note in drawn.get("annotations", ())]
    return f"{title}. {'; '.join([*series, *notes])}."


def _series_words(trace: dict[str, Any], drawn: dict[str, Any]) -> str:
    along = drawn["xaxis"]["title"]["text"].partition(" (")[0].lower()
    said = [f"{figure(y)} at {along} {figure(x)}" for x, y in zip(trace["x"], trace["y"], strict=True)]
    return f"{unescape(trace['customdata'][0])}: {', '.join(said)}"
