"""Whom each preset of a model suits at one load, and which one wins there within the latency limits. Pure.

All of it follows from estimates: middles of ranges decide what a preset suits, worst ends decide who wins, as where an
instance is chosen (`target_choice`).
"""

from __future__ import annotations

from collections.abc import Mapping

from backend.domain.frozen import Frozen
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.estimate_correction import geometric_middle
from backend.domain.planner.preset_titles import NOTICED
from backend.domain.planner.target_choice import UNITS, TargetGoal, find_miss, score

BOTH = "Any load: cheapest and fastest"
CHEAPEST = "Many users at the lowest price"
FASTEST = "Each user: shortest wait"
LIGHT = "Light load: lowest price per hour"
BETWEEN = "Balance of price and speed"
BEATEN = "Nothing: another is cheaper and faster"
UNCHANGED = "Same answers as the original"
UNKNOWN = "Not known: no speed or price"
LEADS = frozenset({BOTH, CHEAPEST, FASTEST, LIGHT})


class PresetChoice(Frozen):
    """The best preset of a model at one load. `winner` is its key; None where none can be ranked or meets the limits,
    and `why` says which figure is missing or missed."""

    winner: str | None
    why: str


def suits(key: str, estimates: Mapping[str, Estimate | None]) -> str:
    """Return for whom the preset `key` is best among `estimates`, those of all presets of its model at one load."""
    # 1. Time and price per token of those where both are known.
    figures = {name: pair for name, estimate in estimates.items() if (pair := _figures(estimate)) is not None}
    if key not in figures:
        return UNKNOWN
    time, price = figures[key]
    times, prices = ([pair[place] for pair in figures.values()] for place in (0, 1))
    # 2. The best of all in one of them or both, or by the hour.
    is_fastest, is_cheapest = time <= (1 + NOTICED) * min(times), price <= (1 + NOTICED) * min(prices)
    if is_fastest and is_cheapest:
        return BOTH
    if is_fastest or is_cheapest:
        return FASTEST if is_fastest else CHEAPEST
    hours = {name: estimate.price_of_all_per_hour for name, estimate in estimates.items() if estimate is not None}
    lowest_hour = min((hour for hour in hours.values() if hour is not None), default=None)
    if lowest_hour is not None and hours[key] == lowest_hour:
        return LIGHT
    # 3. Whether another is better in both.
    is_beaten = any(
        other_time < (1 - NOTICED) * time and other_price < (1 - NOTICED) * price
        for other_time, other_price in figures.values()
    )
    return BEATEN if is_beaten else BETWEEN


def choose_preset(estimates: Mapping[str, Estimate | None], goal: TargetGoal) -> PresetChoice:
    """Return the preset that meets the goal best at the worst end of its estimate."""
    # 1. Those that were estimated.
    known = {key: estimate for key, estimate in estimates.items() if estimate is not None}
    if not known:
        return PresetChoice(winner=None, why="No preset of this model can be estimated at this load.")
    # 2. Those that meet the limits; without one, what the nearest of them misses.
    misses = {key: find_miss(estimate, goal) for key, estimate in known.items()}
    meeting = [key for key, miss in misses.items() if miss is None]
    if not meeting:
        closest = min(known, key=lambda key: score(known[key], goal))
        return PresetChoice(winner=None, why=f"No preset can be named. {misses[closest]}")
    # 3. The best of them.
    winner = min(meeting, key=lambda key: (score(known[key], goal), key))
    best = score(known[winner], goal)
    if best == float("inf"):
        return PresetChoice(winner=None, why="No preset can be named: the price per token is not known at this load.")
    among = " of those that meet your latency limits" if goal.latency_limits else ""
    return PresetChoice(winner=winner, why=f"lowest{among}, at most {best:,.3g} {UNITS[goal.wanted]}.")


def _figures(estimate: Estimate | None) -> tuple[float, float] | None:
    """Return the middles of time and price per token; None where one is not known."""
    if estimate is None or estimate.tpot_ms is None or estimate.price_per_million_output is None:
        return None
    return geometric_middle(estimate.tpot_ms), geometric_middle(estimate.price_per_million_output)
