"""What came of guessing ahead, as charts: by position, by length, by kind of prompt, and the gain beside what acceptance allows.
Pure data for plotly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from backend.domain.evaluation.comparison import higher_is_better
from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.proof.lossless import same_but_speculation
from backend.domain.evaluation.proof.record import Drafting
from backend.domain.figures import figure
from backend.domain.load.load import Load
from backend.present.charts.parts import legend_name, places, provenance, whisker_key
from backend.present.charts.theme import COLOURS, Figure, Theme, empty, layout, style, text
from backend.present.words.measured import typical

NOTHING = "Nothing was guessed ahead, or the server did not tell."
BY_POSITION, LENGTHS, BY_KIND = "Accepted by position", "Tokens a step with a draft", "Tokens a step by kind of prompt"
GAIN = "What acceptance allows, and what it gave"


class Drafted(NamedTuple):
    """One variant at one load."""

    result: VariantResult
    level: Level
    drafting: Drafting


def drafted(evaluation: Evaluation, load: Load | None = None) -> list[Drafted]:
    """Levels at which something was guessed, of one load or all."""
    return [
        Drafted(result, level, level.drafting)
        for result in evaluation.variants
        for level in result.levels
        if level.drafting is not None and level.drafting.drafts and load in {None, level.load}
    ]


def loads(evaluation: Evaluation) -> list[Load]:
    return sorted({each.level.load for each in drafted(evaluation)})


def by_position(evaluation: Evaluation, load: Load, theme: Theme = "light") -> Figure:
    """Of all drafts, those whose first, second, ... token was accepted."""
    rows = [each for each in drafted(evaluation, load) if each.drafting.rates]
    x = {"label": "Token of the draft", "dtick": 1}
    y = {"label": "Accepted, of all drafts", "range": [0, 1.02], "tickformat": ".0%"}
    series = [
        _line(
            evaluation,
            each,
            list(range(1, len(each.drafting.rates) + 1)),
            each.drafting.rates,
            "position {x}: {y:.0%} accepted",
            theme,
        )
        for each in rows
    ]
    return _drawn(f"{BY_POSITION}, {load.words}", series, x, y, evaluation, theme)


def lengths(evaluation: Evaluation, load: Load, theme: Theme = "light") -> Figure:
    """How many tokens a step with a draft gave: the accepted ones and the target's own."""
    rows = [each for each in drafted(evaluation, load) if each.drafting.lengths]
    x, y = {"label": "Tokens of a step", "dtick": 1}, {"label": "Share of the drafts", "rangemode": "tozero", "tickformat": ".0%"}
    series = [
        _bars(
            evaluation,
            each,
            list(range(1, len(each.drafting.lengths) + 1)),
            each.drafting.lengths,
            "{y:.0%} gave {x} tokens",
            theme,
        )
        for each in rows
    ]
    return _drawn(f"{LENGTHS}, {load.words}", series, x, y, evaluation, theme)


def by_kind(evaluation: Evaluation, load: Load, theme: Theme = "light") -> Figure:
    """Of all steps of measured answers, also those that had no draft."""
    rows = [each for each in drafted(evaluation, load) if each.drafting.steps]
    x, y = {"label": "Kind of prompt", "type": "category"}, {"label": "Tokens a step", "rangemode": "tozero"}
    series = []
    for each in rows:
        known = {kind: steps.length for kind, steps in each.drafting.steps.items() if steps.length is not None}
        series.append(
            _bars(evaluation, each, [text(kind) for kind in known], list(known.values()), "{x}: {y:.2f} tokens a step", theme)
        )
    return _drawn(f"{BY_KIND}, {load.words}", series, x, y, evaluation, theme)


class Gain(NamedTuple):
    """Of a variant at a load, against the same without speculation: tokens a step of the server over all steps, which is what it
    would gain if proposing and verifying cost nothing, and what was measured, with its interval where there is one."""

    each: Drafted
    allowed: float
    measured: float
    interval: tuple[float, float] | None


def gains(evaluation: Evaluation) -> list[Gain]:
    """Where the same without speculation was measured beside it."""
    found = []
    for each in drafted(evaluation):
        allowed, plain = per_step(each.drafting), twin(evaluation, each.result)
        level = plain and next((level for level in plain.levels if level.load == each.level.load), None)
        rates = typical(each.level), level and typical(level)
        if plain is not None and allowed is not None and rates[0] and rates[1]:
            found.append(Gain(each, allowed, rates[0] / rates[1], _interval(evaluation, each, plain)))
    return found


def per_step(drafting: Drafting) -> float | None:
    """Tokens of all steps, with a draft or without: an accepted token spared one."""
    made = drafting.generated_tokens
    return made / (made - drafting.accepted_tokens) if made and made > drafting.accepted_tokens else None


def twin(evaluation: Evaluation, result: VariantResult) -> VariantResult | None:
    """The variant that is the same without speculation; an artifact that only speculates has a copy of the original's weights."""
    own = result.weights_sha256
    same = (each for each in evaluation.variants if same_but_speculation(each.variant, result.variant))
    copies = (each for each in evaluation.variants if own and each.weights_sha256 == own and each.variant.speculation is None)
    return next(same, None) or next(copies, None)


def _interval(evaluation: Evaluation, each: Drafted, plain: VariantResult) -> tuple[float, float] | None:
    """That of the comparison, where the baseline is the twin."""
    rows = (
        row for row in evaluation.comparison
        if row.variant == each.result.name and row.baseline == plain.name and row.load == each.level.load
    )  # fmt: skip
    return next((row.ci95 for row in rows if higher_is_better(row.metric)), None)


def gain(evaluation: Evaluation, theme: Theme = "light") -> Figure:
    """Two bars a variant and load: the most that its acceptance allows, pale, and what was measured."""
    rows = gains(evaluation)
    if not rows:
        return empty(GAIN, "The same without speculation was not measured beside it.", theme)
    x, y = {"label": "Variant and load", "type": "category"}, {"label": "Times as fast as without", "rangemode": "tozero"}
    names = [f"{legend_name(row.each.result.name)}, {row.each.level.load.words}" for row in rows]
    colours = [style(places(evaluation)[row.each.result.name], theme).colour for row in rows]
    line = {"color": COLOURS[theme].muted, "width": 1}
    said = [f"allows {figure(row.allowed)}x, gave {figure(row.measured)}x" for row in rows]
    shared: dict[str, Any] = {"type": "bar", "x": names, "hovertext": said, "hoverinfo": "text"}
    allowed = {
        **shared,
        "name": "if proposing cost nothing",
        "y": [row.allowed for row in rows],
        "customdata": ["allowed"] * len(rows),
    }
    allowed["marker"] = {"color": COLOURS[theme].grid, "line": line}
    measured = {**shared, "name": "measured", "y": [row.measured for row in rows], "customdata": ["measured"] * len(rows)}
    measured |= {"marker": {"color": colours}, "error_y": _whiskers(rows, theme)}
    drawn = layout(GAIN, x, y, theme, provenance=provenance(evaluation))
    shape = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1, "line": {**line, "dash": "dot"}}
    return {"data": [allowed, measured, whisker_key(theme)], "layout": {**drawn, "barmode": "group", "shapes": [shape]}}


def _whiskers(rows: Sequence[Gain], theme: Theme) -> dict[str, Any]:
    ends = [row.interval or (row.measured, row.measured) for row in rows]
    high = [end[1] - row.measured for row, end in zip(rows, ends, strict=True)]
    low = [row.measured - end[0] for row, end in zip(rows, ends, strict=True)]
    return {"type": "data", "symmetric": False, "array": high, "arrayminus": low, "color": COLOURS[theme].muted, "thickness": 1}


def _line(evaluation: Evaluation, each: Drafted, x: list[Any], y: list[float], words: str, theme: Theme) -> dict[str, Any]:
    look = style(places(evaluation)[each.result.name], theme)
    line = {"color": look.colour, "dash": look.dash, "width": 2}
    marker = {"color": look.colour, "symbol": look.symbol, "size": 9}
    return {**_trace(each, x, y, words), "type": "scatter", "mode": "lines+markers", "line": line, "marker": marker}


def _bars(evaluation: Evaluation, each: Drafted, x: list[Any], y: list[float], words: str, theme: Theme) -> dict[str, Any]:
    look = style(places(evaluation)[each.result.name], theme)
    return {**_trace(each, x, y, words), "type": "bar", "marker": {"color": look.colour}}


def _trace(each: Drafted, x: list[Any], y: list[float], words: str) -> dict[str, Any]:
    name = each.result.name
    said = [words.format(x=one, y=value) for one, value in zip(x, y, strict=True)]
    return {
        "name": legend_name(name), "customdata": [text(name)] * len(x), "x": x, "y": [round(value, 5) for value in y],
        "hovertext": said, "hoverinfo": "text+name",
    }  # fmt: skip


def _drawn(
    title: str, series: list[dict[str, Any]], x: dict[str, Any], y: dict[str, Any], evaluation: Evaluation, theme: Theme
) -> Figure:
    if not series:
        return empty(title, NOTHING, theme)
    return {"data": series, "layout": {**layout(title, x, y, theme, provenance=provenance(evaluation)), "barmode": "group"}}
