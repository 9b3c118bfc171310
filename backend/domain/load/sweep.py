"""Choose the level that a sweep tries next, and find the knee of its results. Pure: no load, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TOLERANCE = 0.05
"""A rate is searched to 5%, a concurrency to 5% or one stream."""
SMALLEST_SHARE = 1 / 64
"""Share of the first rate below which the search for a sustainable rate ends."""
LEAST_BEND = 0.05


def next_level(results: Mapping[float, bool], first: float, most: float, *, whole: bool) -> float | None:
    """Return the next level to try, None where the search is over.

    `results`: level -> True if it was shown to meet the objectives. Doubles from `first` until one fails or `most` is
    reached, then bisects between the lowest that fails and the highest below it that meets them; halves if none does.
    `whole`: levels are whole numbers (streams), else rates, given to three significant digits.
    """
    if not results:
        return min(first, most)
    # 1. Find the lowest level that fails and the highest below it that meets the objectives.
    failing = min((level for level, meets in results.items() if not meets), default=None)
    passing = max(
        (level for level, meets in results.items() if meets and (failing is None or level < failing)), default=0.0
    )
    # 2. Double while none fails, then bisect.
    if failing is None:
        return None if passing >= most else min(passing * 2, most)
    return _between_streams(passing, failing) if whole else _between_rates(passing, failing, first)


def _between_streams(passing: float, failing: float) -> float | None:
    return None if failing - passing <= max(1.0, TOLERANCE * passing) else float(int((passing + failing) / 2))


def _between_rates(passing: float, failing: float, first: float) -> float | None:
    middle = float(f"{(passing + failing) / 2:.3g}")
    narrow = passing > 0 and failing <= passing * (1 + TOLERANCE)
    return None if narrow or failing <= first * SMALLEST_SHARE or middle in {passing, failing} else middle


def knee(points: Sequence[tuple[float, float | None]]) -> float | None:
    """The load beyond which more of it buys little: where the curve of throughput over load, both scaled to 0..1, is
    farthest above its chord (V. Satopaa et al., Finding a "Kneedle" in a Haystack, ICDCS workshops 2011).

    None of fewer than three points with a throughput, and where the curve nowhere bends by 5%: then it lies beyond what
    was tried.
    """
    # 1. Scale load and throughput to 0..1; without a rise there is no knee.
    ordered = sorted((load, value) for load, value in points if value is not None)
    if len(ordered) < 3:
        return None
    (low, start), high, best = ordered[0], ordered[-1][0], max(value for _, value in ordered)
    if high <= low or best <= start:
        return None
    # 2. The point farthest above the chord.
    bend, where = max(
        (((value - start) / (best - start) - (load - low) / (high - low)), load) for load, value in ordered
    )
    return where if bend >= LEAST_BEND else None
