"""How much longer, as a range: from how fast a job went lately, or from how long jobs like it took. Pure arithmetic.

A range is (low, high) in seconds. It is a spread of what was seen, not a confidence interval.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

WINDOWS = 8
"""Most stretches of the phase whose rates are compared."""
FEWEST_STEPS = 3
"""A rate's spread needs this many reports of progress."""


class Reading(NamedTuple):
    """One report of progress: `progress` of the whole job, 0 to 1."""

    at: datetime
    progress: float


class Range(NamedTuple):
    """Seconds, and what they go by."""

    low: float
    high: float
    basis: str


def from_rates(readings: Sequence[Reading], now: datetime) -> Range | None:
    """The rest at the fastest and at the slowest rate of late; None where too little was reported or nothing moved.

    `readings` are of the current phase, in order. The time since the last of them counts against the slowest rate as soon as
    it is longer than any stretch before it, so that a job that stands still shows.
    """
    moved = [reading for reading, before in zip(readings[1:], readings, strict=False) if reading.progress > before.progress]
    steps = [*readings[:1], *moved]
    if len(steps) <= FEWEST_STEPS:
        return None
    every = max(1, (len(steps) - 1) // WINDOWS)
    marks = steps[::-1][::every][::-1]
    paces = [
        (after.at - before.at).total_seconds() / (after.progress - before.progress) for before, after in itertools.pairwise(marks)
    ]
    rest, silent = 1.0 - steps[-1].progress, max(0.0, (now - steps[-1].at).total_seconds())
    low, high = rest * min(paces) - silent, rest * max(paces) - silent
    longest = max((after.at - before.at).total_seconds() for before, after in itertools.pairwise(marks))
    if silent > longest:
        share = max(after.progress - before.progress for before, after in itertools.pairwise(marks))
        high = max(high, rest / share * silent)
    return Range(max(0.0, low), max(0.0, high), f"from the spread of its last {len(paces)} rates in this phase")


def from_earlier(durations: Sequence[float], elapsed_s: float, *, like_it: bool = True) -> Range | None:
    """What the shortest and the longest earlier job would still need; None without one, or once it takes longer than all.

    `like_it`: they were of the same model and recipe or variants, not just of the same kind.
    """
    left = [duration - elapsed_s for duration in durations]
    if not left or max(left) <= 0:
        return None
    jobs = "an earlier job" if len(left) == 1 else f"{len(left)} earlier jobs"
    return Range(
        max(0.0, min(left)), max(left), f"as long as {jobs} {'like it' if like_it else 'of this kind, of any model,'} took"
    )


def from_runs(seconds_a_run: Sequence[float], runs: int) -> Range | None:
    """What `runs` runs take at the fastest and slowest mean of earlier evaluations."""
    if not seconds_a_run or runs < 1:
        return None
    what = "an earlier evaluation" if len(seconds_a_run) == 1 else f"{len(seconds_a_run)} earlier evaluations"
    return Range(min(seconds_a_run) * runs, max(seconds_a_run) * runs, f"at the pace of {what} here")
