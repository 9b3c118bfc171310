"""What every chart of an evaluation shares: markers, hover text and provenance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from backend.domain.charts_theme import Theme, style, text
from backend.domain.comparison import has_many_errors
from backend.domain.evaluation import Evaluation, Level, VariantResult
from backend.domain.wording import hardware_line, streams, versions_line

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


def inert(words: str) -> str:
    """Text inside a hover template, where plotly would put a figure for `%{`."""
    return words.replace("%{", "&#37;{")


def finite(value: float | None) -> float | None:
    """None for what cannot be drawn."""
    return value if value is not None and math.isfinite(value) else None


def at(result: VariantResult, level: Level) -> str:
    return f"<b>{text(result.name)}</b> at {streams(level.key)}"


def flags(level: Level) -> str:
    limited = "<br>held back by the load generator: not the server's figure" if level.client_limited else ""
    failed = f"<br>{level.invocation_errors} of {level.invocations} requests failed" if level.invocation_errors else ""
    return limited + failed


def is_sound(level: Level) -> bool:
    """The server's own figure: the client did not hold it back, and few requests failed."""
    return not level.client_limited and not has_many_errors(level)


def marker(index: int, theme: Theme, levels: Sequence[Level]) -> dict[str, Any]:
    """Hollow where a level is not sound: such a point is not the server's figure."""
    look = style(index, theme)
    symbols = [look.symbol if is_sound(level) else f"{look.symbol}-open" for level in levels]
    return {"color": look.colour, "symbol": symbols, "size": 9, "line": {"color": look.colour, "width": 2}}
