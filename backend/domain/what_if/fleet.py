"""Counts the machines that carry a rate of requests within latency limits, and their cost. Pure.

Machines = rate / (what one machine answers within the limits x (1 - headroom)), rounded up: 300 requests/s at 20 a
machine are 15 machines without headroom. What one machine answers is measured (`costs.operating_point`).
"""

from __future__ import annotations

import math

from backend.domain.evaluation.document import Evaluation
from backend.domain.frozen import Frozen
from backend.domain.what_if.costs import HOURS_A_MONTH, WhatIf, choose_pricing, operating_point

HEADROOM = 0.2
"""Share of each machine that is kept free for bursts where nobody says otherwise."""
ROUNDING = 1e-9


class Fleet(Frozen):
    """The machines of one variant. `requests_per_s`: what one machine answers within the limits; costs are in
    USD, None without an hourly price."""

    variant: str
    requests_per_s: float
    machines: int
    machines_without_headroom: int
    utilisation: float
    """Rate divided by what these machines answer within the limits, 0 to 1."""
    per_hour: float | None
    per_month: float | None
    at_the_end: bool
    """The limits still hold at the highest measured load, so one machine may answer more."""


def size_fleets(
    evaluation: Evaluation, what_if: WhatIf, rate: float, headroom: float = HEADROOM
) -> tuple[list[Fleet], list[str]]:
    """Return a fleet for each variant that meets the limits, the cheapest first, and the names of the others.

    `rate`: requests per second, above 0. `headroom`: 0 to below 1. Without prices the fewest machines come first.
    """
    fleets, unfit = [], []
    for result in evaluation.variants:
        point = operating_point(result, what_if.limits)
        if point is None or point.requests_per_s <= 0:
            unfit.append(result.name)
            continue
        pricing = choose_pricing(evaluation, what_if, result.variant)
        machines = count_machines(rate, point.requests_per_s, headroom)
        per_hour = machines * pricing.hour if pricing else None
        fleets.append(
            Fleet(
                variant=result.name,
                requests_per_s=point.requests_per_s,
                machines=machines,
                machines_without_headroom=count_machines(rate, point.requests_per_s, 0.0),
                utilisation=rate / (machines * point.requests_per_s),
                per_hour=per_hour,
                per_month=per_hour * HOURS_A_MONTH if per_hour is not None else None,
                at_the_end=point.at_the_end,
            )
        )
    return sorted(fleets, key=_cost_order), unfit


def count_machines(rate: float, requests_per_s: float, headroom: float) -> int:
    """Return the machines for a rate, at least one."""
    return max(1, math.ceil(rate / (requests_per_s * (1 - headroom)) - ROUNDING))


def _cost_order(fleet: Fleet) -> tuple[float, int]:
    return (math.inf if fleet.per_hour is None else fleet.per_hour, fleet.machines)
