"""Which level a sweep tries next, and where the knee of what it found is. Pure: no load, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TOLERANCE = 0.05
"""A rate is searched to 5%, a concurrency to 5% or one stream."""
SMALLEST_SHARE = 1 / 64
"""Of the first rate: below it the search for one that holds is given up."""
LEAST_BEND = 0.05


def next_level(kept: Mapping[float, bool], first: float, most: float, *, whole: bool) -> float | None:
    """The next level to try; None where the search is over.

    `kept`: level -> whether it was shown to keep the objectives. Doubles from `first` until one does not or `most` is
    reached, then bisects between the highest kept below the lowest not kept, and that one; where none is kept, halves.
    `whole`: levels are whole numbers (streams), else rates, given to three significant digits.
    """
    if not kept:
        return min(first, most)
    lost = min((level for level, held in kept.items() if not held), default=None)
    held = max((level for level, held in kept.items() if held and (lost is None or level < lost)), default=0.0)
    if lost is None:
        return None if held >= most else min(held * 2, most)
    return _between_streams(held, lost) if whole else _between_rates(held, lost, first)


def _between_streams(held: float, lost: float) -> float | None:
    return None if lost - held <= max(1.0, TOLERANCE * held) else float(int((held + lost) / 2))


def _between_rates(held: float, lost: float, first: float) -> float | None:
    middle = float(f"{(held + lost) / 2:.3g}")
    narrow = held > 0 and lost <= held * (1 + TOLERANCE)
    return None if narrow or lost <= first * SMALLEST_SHARE or middle in {held, lost} else middle


def knee(points: Sequence[tuple[float, float | None]]) -> float | None:
    """The load beyond which more of it buys little: where the curve of throughput over load, both scaled to 0..1, is
    farthest above its chord (V. Satopaa et al., Finding a "Kneedle" in a Haystack, ICDCS workshops 2011).

    None of fewer than three points with a throughput, and where the curve nowhere bends by 5%: then it lies beyond what
    was tried.
    """
    ordered = sorted((load, value) for load, value in points if value is not None)
    if len(ordered) < 3:
        return None
    (low, start), high, best = ordered[0], ordered[-1][0], max(value for _, value in ordered)
    if high <= low or best <= start:
        return None
    bend, where = max(
        (((value - start) / (best - start) - (load - low) / (high - low)), load) for load, value in ordered
    )
    return where if bend >= LEAST_BEND else None
