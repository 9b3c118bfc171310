"""Decides whether something that ended without being asked to is started again, and after which pause. Pure."""

from __future__ import annotations

from typing import NamedTuple

MOST_CRASHES = 5
"""Crashes in a row after which nothing is started again."""
STABLE_S = 600.0
"""Seconds after which what ran so long counts as sound: its next crash is the first again."""
FIRST_S, GROWTH, LONGEST_S = 1.0, 2.0, 60.0
"""The pause before the second start, how it grows, and the longest one. The first start again follows at once."""


class RestartDecision(NamedTuple):
    """`crashes`: crashes in a row, this one included. `pause_s`: seconds before the next start; None for no start."""

    crashes: int
    pause_s: float | None


def decide_restart(crashes: int, ran_s: float) -> RestartDecision:
    """Decide what follows a crash after `ran_s` seconds; `crashes` are those in a row before it."""
    number = 1 if ran_s >= STABLE_S else crashes + 1
    if number > MOST_CRASHES:
        return RestartDecision(number, None)
    pause_s = 0.0 if number == 1 else min(LONGEST_S, FIRST_S * GROWTH ** (number - 2))
    return RestartDecision(number, pause_s)
