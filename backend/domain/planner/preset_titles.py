"""Titles of presets by their figures, compared with the original and with each other. Pure.

A goal's figure is the middle of its estimated range at the load that is shown: both ends of two ranges rest on the same
assumptions, so they are compared end by end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from backend.domain.figures import figure, streams
from backend.domain.frozen import Frozen
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.estimate_correction import geometric_middle
from backend.domain.planner.presets import GOALS, Goal

NOTICED = 0.02
"""Share of the original's figure below which a difference does not count."""
FIGURES: dict[Goal, tuple[str, str, str, str]] = {
    "lower-cost": ("price_per_million_output", "Lowest cost", "price a token", "costs"),
    "lower-latency": ("tpot_ms", "Lowest latency", "time a token", "takes"),
}
"""Goal -> the field of an estimate, the title of the best of all, the figure's name, and its verb."""
BEST = {best for _, best, _, _ in FIGURES.values()}
Ends = tuple[float, float]


class PresetRow(NamedTuple):
    """A row: its name, its goal (None for the original), what it is made of in words, its estimate."""

    key: str
    goal: Goal | None
    made_of: str
    estimate: Estimate | None


class PresetTitle(Frozen):
    """A title that names a goal only where the figure confirms it.

    `ratio` is the goal's figure over the original's, (least, most).
    """

    key: str
    title: str
    holds: bool | None
    """None where the goal has no figure, or one of both is not known."""
    ratio: Ends | None = None
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


def _preset_title(entry: PresetRow, entries: Sequence[PresetRow], original: Estimate | None) -> PresetTitle:
    if entry.goal is None or entry.goal not in FIGURES:
        return PresetTitle(key=entry.key, title=GOALS[entry.goal].title if entry.goal else entry.made_of, holds=None)
    field, best, what, verb = FIGURES[entry.goal]
    mine, its = _ends(entry.estimate, field), _ends(original, field)
    if mine is None or its is None or entry.estimate is None:
        return PresetTitle(
            key=entry.key, title=entry.made_of, holds=None, note=f"Its {what} is not known beside the original's."
        )
    others = [ends for other in entries if (ends := _ends(other.estimate, field))]
    holds = geometric_middle(mine) < (1 - NOTICED) * geometric_middle(its)
    lowest = holds and all(geometric_middle(mine) <= geometric_middle(ends) for ends in others)
    least, most = sorted((mine[0] / its[0], mine[1] / its[1]))
    load = streams(entry.estimate.load.concurrency)
    note = f"At {load} a token {verb} {figure(least)} to {figure(most)} of the original's on {entry.estimate.target}."
    title = best if lowest else GOALS[entry.goal].title if holds else entry.made_of
    return PresetTitle(key=entry.key, title=title, holds=holds, ratio=(least, most), note=note)


def _ends(estimate: Estimate | None, field: str) -> Ends | None:
    value: Ends | None = getattr(estimate, field) if estimate else None
    return value
