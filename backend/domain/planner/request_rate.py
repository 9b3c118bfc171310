"""From a rate of requests to the concurrent requests that it keeps in flight, and to the instances that carry it. Pure.

Little's law (Little 1961): N = rate x seconds of a request at N. In a closed loop of N streams the seconds of a request
are N / (requests per second), so N is the least number of streams at which the predicted output tokens/s are at least
those that the rate asks for. The means are meant: a burst waits longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from backend.domain.model.facts import ModelFacts
from backend.domain.needs import engine_costs, serving_memory
from backend.domain.neuron import cores
from backend.domain.planner import roofline
from backend.domain.planner.estimate_context import EstimateContext, with_slots
from backend.domain.recipe.recipe import Recipe

FORMULA = (
    "N = rate x seconds of a request at N (Little 1961): the least N whose output tokens/s at the worst end are those "
    "that the rate asks for, shared evenly where one instance does not carry them"
)
MOST_SLOTS = 4096
"""Most slots that a server with a shared pool is planned with."""
_ROUNDING = 1e-12


class InFlight(NamedTuple):
    """`concurrency` is that of each of the `instances`, which share the rate evenly."""

    concurrency: int
    instances: int
    carried_tokens_per_s: float
    """Output tokens/s that one instance carries at the most."""


def find_in_flight(tokens_per_s: float, carried: Callable[[int], float], most: int) -> InFlight | None:
    """Return what a rate of `tokens_per_s` output tokens keeps in flight; None if nothing is carried.

    `carried`: concurrent requests -> output tokens/s, which do not fall as requests are added. `most`: the number of
    concurrent requests beyond which none are added.
    """
    # 1. Doubled numbers of requests until they carry it; the most that is carried at any of them and at the last.
    levels = [2**power for power in range(most.bit_length()) if 2**power < most] + [most]
    rates: list[float] = []
    for level in levels:
        rates.append(carried(level))
        if rates[-1] >= tokens_per_s:
            break
    capacity = max(*rates, carried(most))
    if capacity <= 0:
        return None
    # 2. The instances, and the share of each.
    instances = max(1, math.ceil(tokens_per_s / capacity * (1 - _ROUNDING)))
    share = min(tokens_per_s / instances, capacity)
    # 3. The least number between two doublings that carries the share.
    first = next(place for place, rate in enumerate(rates) if rate >= share)
    low, high = levels[first - 1] if first else 0, levels[first]
    while high - low > 1:
        middle = (low + high) // 2
        if carried(middle) < share:
            low = middle
        else:
            high = middle
    return InFlight(high, instances, capacity)


def predict_in_flight(
    model: ModelFacts, recipe: Recipe, context: EstimateContext, degree: int, replicas: int
) -> InFlight | None:
    """Return the requests that the load's rate keeps in flight, at the worst end; None without a rate or where the
    speed is not known."""
    load, device, draft = context.load, context.facts.device, context.facts.serving_draft(recipe)
    if load.rate is None or device is None or not model.generates:
        return None
    # 1. The room of the server; one that shares a pool is started with more slots for more requests.
    compiled = context.facts.place == "neuron"
    pooled = not compiled and engine_costs.shares_pool(recipe.serving)
    cut = cores.pad_model(model, degree) if compiled else model

    def room(concurrency: int) -> tuple[int, int]:
        slots = with_slots(recipe, context.at_concurrency(concurrency).load) if pooled else recipe
        memory = serving_memory.device_memory(cut, slots, device, degree, draft)
        return serving_memory.concurrent_sequences(memory, slots, load.input_tokens + load.output_tokens)

    fixed = None if pooled else room(1)
    most = MOST_SLOTS if fixed is None else max(1, fixed[0]) * replicas
    # 2. The output tokens/s of so many requests, corrected as the estimate will be.
    acceptance = context.trained if context.acceptance is None else context.acceptance
    scenario = roofline.make_scenario(
        model, recipe, device, degree, load, draft=draft, acceptance=acceptance, gains=context.gains(recipe)
    )
    if scenario is None:
        return None
    factor = context.calibration.rate if context.calibration else 1.0

    @cache
    def carried_by_replica(streams: int, room_of_one: int) -> float:
        return roofline.carried_tokens_per_s(scenario.with_streams(streams), room_of_one)

    def carried(concurrency: int) -> float:
        least = (fixed or room(concurrency))[0]
        streams, busier = divmod(concurrency, replicas)  # as `roofline.replicated_speed` shares them
        rate = busier * carried_by_replica(streams + 1, least) if busier else 0.0
        return factor * (rate + (replicas - busier) * carried_by_replica(streams, least) if streams else rate)

    return find_in_flight(load.rate * load.output_tokens, carried, most)
