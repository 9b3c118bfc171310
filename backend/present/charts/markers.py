"""Parts that all charts of an evaluation share: markers, hover text and provenance."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from html import unescape
from textwrap import wrap
from typing import Any

from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.soundness import is_sound, uncounted_words
from backend.domain.figures import finite
from backend.domain.machine.hardware_lines import hardware_line, versions_line
from backend.domain.maths.intervals import factor_ci95
from backend.present.charts.theme import COLOURS, Theme, style, text, whiskers
from backend.present.source_names import short_name

LEGEND_WIDTH, NOTE_WIDTH = 30, 50
"""Characters."""
HOVER_WIDTH = 44
"""Characters per line of hover text: so many fit beside any mark on a chart of half a page."""
USUAL = ("w8a8", "awq", "draft", "w8a8-draft", "gptq", "ngram")
"""Variants that are often compared: each has a colour of its own."""
WHISKERS = "whiskers: 95% interval"
WHISKERS_TEXT = (
    "Whiskers on every chart are 95% intervals: of KL over the windows of the text, of all other figures over repeats."
)
ORGANIZATION = re.compile(r"^[\w.-]+/(?=[\w.-])")
"""The organization before the name of a model on a hub."""

PER_USER = "Output tokens/s per user (1 / TPOT)"
"""After the first token, so streams times this is more than the total, in which prompts are read too."""


def levels(evaluation: Evaluation) -> list[int]:
    """Return every concurrency of any variant, ascending."""
    return sorted({level.concurrency for result in evaluation.variants for level in result.levels})


def provenance(evaluation: Evaluation) -> str:
    """Return when, where and with what it was measured, as hover text."""
    hardware, versions = hardware_line(evaluation.hardware), versions_line(evaluation.versions)
    return "<br>".join(
        folded(words) for words in (f"measured {evaluation.measured_at}", f"on {hardware}", f"with {versions}")
    )


def folded(words: str) -> str:
    """Return inert text in short lines: plotly does not wrap hover text and cuts what leaves the chart."""
    return "<br>".join(map(text, wrap(words, HOVER_WIDTH)))


def places(evaluation: Evaluation) -> dict[str, int]:
    """Return the style index (`theme.style`) of each variant by name; 0 and its cycle are the baselines'."""
    baselines = {row.baseline for row in evaluation.comparison} or {result.name for result in evaluation.variants[:1]}
    originals = {result.variant.name for result in evaluation.variants if result.name in baselines}
    own = ["" if result.variant.name in originals else result.variant.name for result in evaluation.variants]
    return dict(zip((result.name for result in evaluation.variants), style_indices(own), strict=True))


def style_indices(names: Sequence[str]) -> list[int]:
    """Return a style index for each name; the original's name is empty.

    The colour follows from the name, so that a variant has the same colour on every page. If two names have the same
    colour, one of them gets the next free one, whatever their order. Equal names share the colour and differ in shape.
    """
    # 1. One colour per name.
    cycle, colours, indices = len(COLOURS["light"].series), {"": 0}, list[int]()
    for name in sorted(names, key=lambda name: (_usual(name) not in USUAL, name)):
        order = [(_preferred(name, cycle) - 1 + step) % (cycle - 1) + 1 for step in range(cycle - 1)]
        colours.setdefault(name, next((colour for colour in order if colour not in colours.values()), order[0]))
    # 2. One shape per use of a colour.
    for name in names:
        places = range(colours[name], colours[name] + cycle * (len(names) + 1), cycle)
        indices.append(next(place for place in places if place not in indices))
    return indices


def _usual(name: str) -> str:
    """Return a usual name: `W8A8 + draft` and `AWQ 4-bit`, named after recipe steps, are `w8a8-draft` and `awq`."""
    return name.lower().replace(" + ", "-").replace("n-gram", "ngram").replace(" 4-bit", "")


def _preferred(name: str, cycle: int) -> int:
    name = _usual(name)
    return USUAL.index(name) + 1 if name in USUAL else zlib.crc32(name.encode()) % (cycle - 1) + 1


def whisker_key(theme: Theme) -> dict[str, Any]:
    """Return a legend entry that explains the whiskers."""
    line = {"color": COLOURS[theme].muted, "width": 1}
    return {
        "type": "scatter",
        "mode": "lines",
        "name": WHISKERS,
        "x": [None],
        "y": [None],
        "hoverinfo": "skip",
        "line": line,
    }


def slice_figures(metric: str, level: Level) -> list[float]:
    """Return the metric of each slice of a level that has it."""
    return [block[metric] for block in level.blocks if metric in block]


def slice_whiskers(
    values: Sequence[float], slices: Sequence[Sequence[float]], colour: str, *, width: int = 3
) -> dict[str, Any]:
    """Return the 95% t interval of each value over its slices, of log figures as in verdicts; none if there are too few
    slices."""
    factors = [factor_ci95(own) or 1.0 for own in slices]
    if all(factor == 1 for factor in factors):
        return {"visible": False}
    above = [value * (factor - 1) for factor, value in zip(factors, values, strict=True)]
    below = [value * (1 - 1 / factor) for factor, value in zip(factors, values, strict=True)]
    return whiskers(above, below, colour, thickness=1, width=width)


def has_whiskers(traces: Sequence[dict[str, Any]]) -> bool:
    """Tell whether any mark of the traces has an interval, so that the legend must explain it."""
    return any(any(trace.get(f"error_{axis}", {}).get("array", ())) for trace in traces for axis in ("x", "y"))


def legend_name(name: str) -> str:
    """Shorten a name for a legend on a phone; symbol and colour tell two names apart, hover text has the whole name.

    A name that is still too long loses its organization (`org/`), then its middle, since its end tells variants apart.
    """
    short = short_name(name)
    if len(short) > LEGEND_WIDTH:
        short = ORGANIZATION.sub("", short)
    if len(short) > LEGEND_WIDTH:
        begin = LEGEND_WIDTH // 2
        short = f"{short[:begin]}…{short[begin + 1 - LEGEND_WIDTH :]}"
    return text(short)


def inert(words: str) -> str:
    """Escape `%{` for a hover template, where plotly would put a figure in its place."""
    return words.replace("%{", "&#37;{")


def point_title(result: VariantResult, level: Level) -> str:
    return f"<b>{folded(result.name)}</b> at {level.load.words}"


def flags(level: Level) -> str:
    limited = "<br>limited by the load generator: not the server's figure" if level.client_limited else ""
    failed = f"<br>{level.invocation_errors} of {level.invocations} requests failed" if level.invocation_errors else ""
    return limited + failed + (f"<br>{uncounted_words(level)}" if level.tokenizer_failed else "")


def note(words: str, theme: Theme) -> dict[str, Any]:
    """Return a one-line note above the plot, short enough for a phone; hover text has the whole note."""
    whole, short = unescape(words), {"text": words}
    if len(whole) > NOTE_WIDTH:
        short = {"text": text(f"{whole[: NOTE_WIDTH - 1]}…"), "hovertext": words}
    place = {"xref": "paper", "yref": "paper", "x": 0, "y": 1.08, "xanchor": "left", "showarrow": False}
    return {**short, **place, "font": {"size": 11, "color": COLOURS[theme].muted}}


def uncounted_variants(evaluation: Evaluation, value: Callable[[Level], float | None]) -> list[str]:
    """Return `Tokens not counted: a, b (1 of 3 levels)` if variants lack a figure for that reason; else nothing."""
    names = []
    for result in evaluation.variants:
        count = sum(1 for level in result.levels if level.tokenizer_failed and finite(value(level)) is None)
        some = f" ({count} of {len(result.levels)} levels)" if count < len(result.levels) else ""
        if count:
            names.append(f"{legend_name(result.name)}{some}")
    return [f"Tokens not counted: {', '.join(names)}"] if names else []


def marker(place: int, theme: Theme, levels: Sequence[Level]) -> dict[str, Any]:
    """Return markers, hollow for levels that are not sound: such a point is not the server's figure."""
    mark_style = style(place, theme)
    symbols = [mark_style.symbol if is_sound(level) else f"{mark_style.symbol}-open" for level in levels]
    return {"color": mark_style.colour, "symbol": symbols, "size": 9, "line": {"color": mark_style.colour, "width": 2}}
