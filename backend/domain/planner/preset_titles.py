"""Titles of presets by their figures, compared with the original and with each other, and what each gains and costs.
Pure.

A goal's figure is the middle of its estimated range at the load that is shown: both ends of two ranges rest on the same
assumptions, so they are compared end by end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend.domain.figures import code, figure
from backend.domain.frozen import Frozen
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.estimate_correction import geometric_middle
from backend.domain.planner.presets import GOALS, Goal

NOTICED = 0.02
"""Share of the original's figure below which a difference does not count."""


class GoalFigure(NamedTuple):
    """The figure that confirms a goal."""

    field: str
    """Its field of an estimate."""
    best_title: str
    """The title of the preset that is the best of all."""
    name: str


FIGURES: dict[Goal, GoalFigure] = {
    "lower-cost": GoalFigure("price_per_million_output", "Lowest cost", "price per token"),
    "lower-latency": GoalFigure("tpot_ms", "Lowest latency", "time per token"),
}
BEST = {row.best_title for row in FIGURES.values()}
Ends = tuple[float, float]


class PresetRow(NamedTuple):
    """A row: its name, its goal (None for the original), what it is made of in words, its estimate."""

    key: str
    goal: Goal | None
    made_of: str
    estimate: Estimate | None


class PresetTitle(Frozen):
    """A title that names a goal only where the figure confirms it, beside the original and beside every other preset.

    `ratio` is the goal's figure over the original's, (least, most). `beaten_by` is the key of the preset with the
    lowest figure, whatever its goal, if it is clearly lower than this one's.
    """

    key: str
    title: str
    holds: bool | None
    """None where the goal has no figure, or one of both is not known."""
    ratio: Ends | None = None
    beaten_by: str = ""
    note: str = ""


def title_presets(entries: Sequence[PresetRow], original: Estimate | None) -> list[PresetTitle]:
    """Return one title per row, in order; all estimates are at one load."""
    return [_preset_title(entry, entries, original) for entry in entries]


def title_at_all_loads(rows: Sequence[PresetTitle], made_of: str) -> str:
    """Return one preset's title where several loads are shown.

    It is the best of all only where it is so at each load, its goal's where every load confirms it, else what it is
    made of.
    """
    titles = [row.title for row in rows]
    if not rows or made_of in titles:
        return made_of
    return titles[0] if len(set(titles)) == 1 else next(title for title in titles if title not in BEST)


def tradeoff_sentence(preset: Estimate | None, original: Estimate | None) -> str:
    """Return `Estimated 2.5x faster per user at 1.6x the price of the original.`, from the middles of both ranges;
    where a figure is not known, what is missing."""
    if preset is None or preset.tpot_ms is None:
        return "Its speed at this load is not known."
    if original is None or original.tpot_ms is None:
        return "The speed of the original is not known, so nothing can be compared."
    times = geometric_middle(original.tpot_ms) / geometric_middle(preset.tpot_ms)
    speed = _speed(times)
    if preset.price_per_million_output is None or original.price_per_million_output is None:
        return f"Estimated: {speed} per user; the price is not known."
    price = geometric_middle(preset.price_per_million_output) / geometric_middle(original.price_per_million_output)
    cost = "the same price as" if abs(price - 1) < NOTICED else f"{figure(price, 2)}x the price of"
    return f"Estimated: {speed} per user at {cost} the original."


def _speed(times: float) -> str:
    """Return `2.5x faster`, `1.3x slower` or `as fast`."""
    if abs(times - 1) < NOTICED:
        return "as fast"
    return f"{figure(times, 2)}x faster" if times > 1 else f"{figure(1 / times, 2)}x slower"


def _preset_title(entry: PresetRow, entries: Sequence[PresetRow], original: Estimate | None) -> PresetTitle:
    # 1. A goal without a figure is not confirmed or denied.
    if entry.goal is None or entry.goal not in FIGURES:
        return PresetTitle(key=entry.key, title=GOALS[entry.goal].title if entry.goal else entry.made_of, holds=None)
    field, best, name = FIGURES[entry.goal]
    mine, its = _ends(entry.estimate, field), _ends(original, field)
    if mine is None or its is None or entry.estimate is None:
        return PresetTitle(
            key=entry.key,
            title=entry.made_of,
            holds=None,
            note=f"Its {name} cannot be compared with that of the original.",
        )
    # 2. Compare the middles: with the original, then with all presets.
    holds = geometric_middle(mine) < (1 - NOTICED) * geometric_middle(its)
    middles = {other.key: geometric_middle(ends) for other in entries if (ends := _ends(other.estimate, field))}
    best_key = min(middles, key=lambda key: middles[key])
    is_lowest = middles[entry.key] <= middles[best_key]
    beaten_by = best_key if middles[best_key] < (1 - NOTICED) * middles[entry.key] else ""
    # 3. The title and the figures.
    least, most = sorted((mine[0] / its[0], mine[1] / its[1]))
    load = entry.estimate.load.demand
    times = f"{figure(least)} to {figure(most)} times that of the original"
    note = f"At {load}, the {name} is {times} on {entry.estimate.target}."
    if beaten_by:
        note = f"{note} {code(beaten_by)} has the lowest {name}."
    title = GOALS[entry.goal].title if holds and not beaten_by else entry.made_of
    if holds and is_lowest:
        title = best
    ratio = (least, most)
    return PresetTitle(key=entry.key, title=title, holds=holds, ratio=ratio, beaten_by=beaten_by, note=note)


def _ends(estimate: Estimate | None, field: str) -> Ends | None:
    value: Ends | None = getattr(estimate, field) if estimate else None
    return value
