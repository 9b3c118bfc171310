"""What every chart of an evaluation shares: markers, hover text and provenance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import unescape
from typing import Any

from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.soundness import is_sound, uncounted
from backend.domain.figures import finite
from backend.domain.machine.lines import hardware_line, versions_line
from backend.present.charts.theme import COLOURS, Theme, style, text

LEGEND_WIDTH, NOTE_WIDTH = 24, 50
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


def at(result: VariantResult, level: Level) -> str:
    return f"<b>{text(result.name)}</b> at {level.load.words}"


def flags(level: Level) -> str:
    limited = "<br>held back by the load generator: not the server's figure" if level.client_limited else ""
    failed = f"<br>{level.invocation_errors} of {level.invocations} requests failed" if level.invocation_errors else ""
    return limited + failed + (f"<br>{uncounted(level)}" if level.tokenizer_failed else "")


def note(words: str, theme: Theme) -> dict[str, Any]:
    """Above the plot, at its left: what has no place in it. One line that a phone has room for; hover text has the whole."""
    whole = unescape(words)
    short = {"text": words} if len(whole) <= NOTE_WIDTH else {"text": text(f"{whole[: NOTE_WIDTH - 1]}…"), "hovertext": words}
    place = {"xref": "paper", "yref": "paper", "x": 0, "y": 1.08, "xanchor": "left", "showarrow": False}
    return {**short, **place, "font": {"size": 11, "color": COLOURS[theme].muted}}


def uncounted_variants(evaluation: Evaluation, value: Callable[[Level], float | None]) -> list[str]:
    """`Tokens not counted: a, b (1 of 3 levels)`: who has no figure here because answers did not tell their tokens; else none."""
    found = []
    for result in evaluation.variants:
        count = sum(1 for level in result.levels if level.tokenizer_failed and finite(value(level)) is None)
        some = f" ({count} of {len(result.levels)} levels)" if count < len(result.levels) else ""
        found += [f"{legend_name(result.name)}{some}"] * bool(count)
    return [f"Tokens not counted: {', '.join(found)}"] if found else []


def marker(index: int, theme: Theme, levels: Sequence[Level]) -> dict[str, Any]:
    """Hollow where a level is not sound: such a point is not the server's figure."""
    look = style(index, theme)
    symbols = [look.symbol if is_sound(level) else f"{look.symbol}-open" for level in levels]
    return {"color": look.colour, "symbol": symbols, "size": 9, "line": {"color": look.colour, "width": 2}}
