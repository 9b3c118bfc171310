"""The time left, as a range: from how fast a job went lately, or from how long similar jobs took. Pure arithmetic.

A range is (low, high) in seconds. It is a spread of what was observed, not a confidence interval.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from datetime import datetime
from statistics import median
from typing import NamedTuple

WINDOWS = 8
"""Most stretches of the phase whose rates are compared."""
SETTLING = 0.8
"""The most of an evaluation's time that starting servers and warming them up takes."""
FEWEST_STEPS = 3
"""A rate's spread needs this many reports of progress."""
FEWEST_FOR_MEDIAN, MOST_OF_MEDIAN = 3, 10.0
"""Earlier jobs from which on a median is taken, and how many medians one of them may have lasted to count."""


class ProgressReading(NamedTuple):
    """A report of progress: `progress` of the whole job, 0 to 1."""

    at: datetime
    progress: float


class TimeLeft(NamedTuple):
    """Seconds, and the basis of the estimate."""

    low: float
    high: float
    basis: str


def from_rates(readings: Sequence[ProgressReading], now: datetime) -> TimeLeft | None:
    """Return the time left at the fastest and at the slowest recent rate; None if too little was reported or nothing
    moved.

    `readings` are of the current phase, in order. The time since the last one counts against the slowest rate as soon
    as it is longer than any stretch before it, so that a job that stands still shows.
    """
    # 1. Keep the readings at which progress grew.
    moved = [
        reading for reading, before in zip(readings[1:], readings, strict=False) if reading.progress > before.progress
    ]
    steps = [*readings[:1], *moved]
    if len(steps) <= FEWEST_STEPS:
        return None

    # 2. Compare the rates of up to WINDOWS stretches.
    every = max(1, (len(steps) - 1) // WINDOWS)
    marks = steps[::-1][::every][::-1]
    paces = [
        (after.at - before.at).total_seconds() / (after.progress - before.progress)
        for before, after in itertools.pairwise(marks)
    ]
    rest, silent = 1.0 - steps[-1].progress, max(0.0, (now - steps[-1].at).total_seconds())
    low, high = rest * min(paces) - silent, rest * max(paces) - silent
    longest = max((after.at - before.at).total_seconds() for before, after in itertools.pairwise(marks))

    # 3. Count a silence that is longer than any stretch.
    if silent > longest:
        share = max(after.progress - before.progress for before, after in itertools.pairwise(marks))
        high = max(high, rest / share * silent)
    return TimeLeft(max(0.0, low), max(0.0, high), f"from the spread of its last {len(paces)} rates in this phase")


def from_earlier(durations: Sequence[float], elapsed_s: float, *, like_it: bool = True) -> TimeLeft | None:
    """Return what the shortest and the longest earlier job would still need; None without one, or if this one takes
    longer than all.

    `like_it`: they were of the same model and recipe or variants, not just of the same kind.
    """
    return _time_left(
        durations, elapsed_s, f"as long as {{}} {'like it' if like_it else 'of this kind, of any model,'} took"
    )


def from_paces(paces: Sequence[float], middle_s: float, elapsed_s: float = 0.0) -> TimeLeft | None:
    """Return the time left by the pace of other jobs: how long each took per estimated second, times the estimate for
    this one."""
    basis = "at the pace of {} of other models or recipes, by what each had to do"
    return _time_left([pace * middle_s for pace in paces], elapsed_s, basis)


def _time_left(durations: Sequence[float], elapsed_s: float, basis: str) -> TimeLeft | None:
    """`basis` has a place for the earlier jobs that say it."""
    # A job during which the machine slept says nothing.
    most = MOST_OF_MEDIAN * median(durations) if len(durations) >= FEWEST_FOR_MEDIAN else math.inf
    left = [duration - elapsed_s for duration in durations if duration <= most]
    if not left or max(left) <= 0:
        return None
    jobs = "an earlier job" if len(left) == 1 else f"{len(left)} earlier jobs"
    return TimeLeft(max(0.0, min(left)), max(left), basis.format(jobs))


class EvaluationSize(NamedTuple):
    """The size of an evaluation: `runs` of a variant at a level in a block, and all their `rounds`, requests one after
    another."""

    runs: int
    rounds: float


def from_runs(earlier: Sequence[tuple[float, EvaluationSize]], runs: EvaluationSize) -> TimeLeft | None:
    """Return what an evaluation of that size takes at the fastest and slowest pace of earlier ones, each given by its
    seconds and size.

    Up to SETTLING of an earlier one's time was not requests (servers that start, warm-up), and grows with runs; the
    rest grows with rounds. Which share it was is not known, so the range has both ends.
    """
    if not earlier or runs.runs < 1:
        return None
    # 1. Both ends for each earlier one.
    ends = []
    for took, did in earlier:
        for share in (0.0, SETTLING):
            ends.append(took * (share * runs.runs / did.runs + (1 - share) * runs.rounds / did.rounds))
    # 2. The widest range, and what it rests on.
    what = "an earlier evaluation" if len(earlier) == 1 else f"{len(earlier)} earlier evaluations"
    return TimeLeft(min(ends), max(ends), f"at the pace of {what} here")
