"""When requests are due in an open loop: constant rate, Poisson, and ramps of both. Pure; knows nothing of clocks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import accumulate, count
from typing import Literal

Process = Literal["constant", "poisson"]


def arrival_offsets(
    rate: float,
    process: Process = "constant",
    *,
    rate_to: float | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> Iterator[float]:
    """Seconds from the start at which requests are due, ascending; without end where `seconds` is None.

    The expected number due until t is N(t) = rate x t, or in a ramp rate x t + (rate_to - rate) x t^2 / (2 x seconds).
    `constant`: request k is due where N(t) = k, the first at once. `poisson`: where N(t) is the k-th event of a Poisson
    process of rate 1, which gives one of intensity N'(t) (time rescaling: Lewis and Shedler, Simulation of
    nonhomogeneous Poisson processes by thinning, Naval Research Logistics Quarterly 26, 1979, section 1). Rates in
    requests a second.
    """
    for number in _numbers(process, seed):
        due = _when(number, rate, rate if rate_to is None else rate_to, seconds)
        if due is None or (seconds is not None and due >= seconds):
            return
        yield due


def _numbers(process: Process, seed: int) -> Iterator[float]:
    if process == "constant":
        return map(float, count())
    chance = random.Random(seed)
    return accumulate(chance.expovariate(1.0) for _ in count())


def _when(number: float, rate: float, rate_to: float, seconds: float | None) -> float | None:
    """The t with N(t) = number; None where a falling ramp never gets there."""
    slope = 0.0 if seconds is None else (rate_to - rate) / seconds
    if slope == 0:
        return number / rate
    under_root = rate * rate + 2 * slope * number
    if under_root < 0:
        return None
    # The quadratic's root without a difference of nearly equal numbers, which could come out below 0.
    below = rate + math.sqrt(under_root)
    return 2 * number / below if below > 0 else 0.0
