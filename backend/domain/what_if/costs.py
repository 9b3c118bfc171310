"""Estimates the cost of serving: the price within latency limits, against a hosted API, and per month. Pure.

A what-if on stored measurements: an hourly price and limits are chosen afterwards, nothing runs again. Figures between
measured levels are read off a monotone curve (`monotone`); nothing is extrapolated: limits that hold at the highest
measured concurrency give that level, and `at_the_end` says that more may be possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from backend.domain.evaluation.document import Evaluation, Level, Price, Variant, VariantResult
from backend.domain.evaluation.prices import MILLION, SECONDS_AN_HOUR, Pricing, level_prices
from backend.domain.evaluation.soundness import is_sound
from backend.domain.frozen import Frozen
from backend.domain.limits.latency_limit import latency_percentile
from backend.domain.limits.slo import Slo
from backend.domain.load.load import Load
from backend.domain.maths import monotone

HOURS_A_MONTH = 730.0
"""365 days of 24 hours, divided by 12, as AWS counts."""


class OperatingPoint(Frozen):
    """One machine at the highest load within the limits, read off a curve: its streams need not be a whole number.

    Tokens/s are None where answers came without token counts, at this level or, between levels, at any of them.
    """

    load: Load
    output_tokens_per_s: float | None
    input_tokens_per_s: float | None
    requests_per_s: float
    interpolated: bool
    """True between two measured levels, False at one of them."""
    at_the_end: bool
    """The limits still hold at the highest measured concurrency: a higher one may be possible, but was not measured."""


class ApiPrice(Frozen):
    """Prices of a hosted API in USD per million tokens."""

    per_million_input: float = Field(ge=0)
    per_million_output: float = Field(ge=0)


class BreakEven(Frozen):
    """`share` of the full load from which the machine is cheaper than the API; above 1 it never is."""

    api_per_hour: float | None
    """The API's price for the tokens that the machine serves in an hour at full load; None where they were not
    counted."""
    share: float | None
    requests_per_hour: float | None
    """None where the machine is never cheaper."""


class MonthlyCost(Frozen):
    """Cost per month of the `machines`, always on, that serve the peak within the limits."""

    machines: int
    cost: float
    cost_per_request: float
    utilisation: float
    """Mean load divided by what these machines can serve within the limits, 0 to 1."""


def operating_point(result: VariantResult, limits: Slo) -> OperatingPoint | None:
    """Return the highest load at which the variant meets the limits; None where no sound level, nor a curve between
    them, does."""
    # At low rates several levels may have the same number of requests under way, so levels are told apart by load.
    by_load = {level.load: level for level in result.levels if is_sound(level)}
    levels = [by_load[load] for load in sorted(by_load)]
    highest = _highest_log_load(levels, limits)
    return None if highest is None else _operating_point(levels, highest)


def _log_load(level: Level) -> float:
    """The position of a level on the curve. A trace, which has no value and is the only level, is at 0."""
    return math.log(level.load.value or 1.0)


def _highest_log_load(levels: Sequence[Level], limits: Slo) -> float | None:
    """Return the logarithm of the highest load at which every limited latency is within its limit."""
    if not levels:
        return None
    highest = [_log_load(levels[-1])]
    for limit in limits.latency_limits:
        latencies = [latency_percentile(level, limit.metric, limits.percentile) for level in levels]
        percentiles = [latency for latency in latencies if latency is not None]
        if len(percentiles) < len(levels):
            return None
        within = monotone.find_last_at_most([_log_load(level) for level in levels], percentiles, limit.most_ms)
        if within is None:
            return None
        highest.append(within)
    return min(highest)


def _operating_point(levels: Sequence[Level], log_load: float) -> OperatingPoint:
    # 1. A measured level, if the load is one.
    x = [_log_load(level) for level in levels]
    matches = (index for index, place in enumerate(x) if math.isclose(place, log_load, abs_tol=1e-9))
    measured = next(matches, None)

    # 2. Figures at it, or between levels on a curve through all of them.
    def figure_at_load(figures: Sequence[float | None]) -> float | None:
        if measured is not None:
            return figures[measured]
        known = [value for value in figures if value is not None]
        return monotone.monotone_curve(x, known)(log_load) if len(known) == len(figures) else None

    load = Load(levels[0].load.mode, math.exp(log_load)) if measured is None else levels[measured].load
    return OperatingPoint(
        load=load,
        output_tokens_per_s=figure_at_load([level.output_tokens_per_s for level in levels]),
        input_tokens_per_s=figure_at_load([level.input_tokens_per_s for level in levels]),
        requests_per_s=figure_at_load([_requests_per_s(level) for level in levels]) or 0.0,
        interpolated=measured is None,
        at_the_end=math.isclose(log_load, x[-1], abs_tol=1e-9),
    )


def _requests_per_s(level: Level) -> float:
    """Requests per second that were answered, over the level's duration."""
    return level.answers / level.duration_s if level.duration_s > 0 else 0.0


def break_even(pricing: Pricing, point: OperatingPoint, api: ApiPrice) -> BreakEven:
    """Return the load at which an hour of the machine costs as much as the API for the same tokens."""
    if point.input_tokens_per_s is None or point.output_tokens_per_s is None:
        return BreakEven(api_per_hour=None, share=None, requests_per_hour=None)
    # 1. The API's price for an hour at full load.
    api_per_s = point.input_tokens_per_s * api.per_million_input + point.output_tokens_per_s * api.per_million_output
    api_per_hour = api_per_s * SECONDS_AN_HOUR / MILLION
    # 2. The share of that load, if it is ever reached.
    share = pricing.hour / api_per_hour if api_per_hour > 0 else None
    requests = None
    if share is not None and share <= 1:
        requests = share * point.requests_per_s * SECONDS_AN_HOUR
    return BreakEven(api_per_hour=api_per_hour, share=share, requests_per_hour=requests)


def monthly_cost(pricing: Pricing, point: OperatingPoint, requests: float, peak: float = 1.0) -> MonthlyCost | None:
    """Return the cost of `requests` per month, at the busiest moment `peak` times the mean; None where the machine
    answers nothing.

    machines = ceil(requests / month x peak / requests per second of one machine within the limits), at least one.
    """
    if point.requests_per_s <= 0 or requests <= 0:
        return None
    # 1. Machines for the busiest moment, which are paid for all month.
    mean_per_s = requests / (HOURS_A_MONTH * SECONDS_AN_HOUR)
    machines = max(1, math.ceil(mean_per_s * peak / point.requests_per_s))
    cost = machines * pricing.hour * HOURS_A_MONTH
    # 2. What they cost, and how much of them is used.
    return MonthlyCost(
        machines=machines,
        cost=cost,
        cost_per_request=cost / requests,
        utilisation=mean_per_s / (machines * point.requests_per_s),
    )


class WhatIf(Frozen):
    """Choices made after an evaluation, for its costs. `per_hour` None is the price that the evaluation was given."""

    limits: Slo = Slo()
    """Limits for one percentile: the price is read at the highest load within them."""
    request_limits: dict[str, float] = Field(default_factory=dict)
    """Latency -> most milliseconds of each request: what goodput counts."""
    per_hour: float | None = Field(None, ge=0)
    discount: float | None = Field(None, ge=0, lt=1)
    input_output_ratio: float | None = Field(None, gt=0)
    """Input tokens for one output token in the blended prices."""
    price_source: str | None = None
    api: ApiPrice | None = None
    requests_a_month: float | None = Field(None, gt=0)
    peak: float = Field(2.0, ge=1)


def choose_pricing(evaluation: Evaluation, what_if: WhatIf, variant: Variant | None = None) -> Pricing | None:
    """Choose the price given afterwards, else the variant's own, else the evaluation's; None without any."""
    stored = evaluation.options
    known = stored.hourly_price(variant) if variant else stored.price_per_hour
    hour = what_if.per_hour if what_if.per_hour is not None else known
    if hour is None:
        return None
    discount = stored.discount if what_if.discount is None else what_if.discount
    ratio = stored.input_output_ratio if what_if.input_output_ratio is None else what_if.input_output_ratio
    return Pricing(per_hour=hour, discount=discount, input_output_ratio=ratio)


def level_price(pricing: Pricing, level: Level) -> Price | None:
    """Return the prices of a measured level; None without an hourly price."""
    return level_prices(
        pricing,
        concurrency=level.concurrency,
        input_tokens_per_s=level.input_tokens_per_s or None,
        output_tokens_per_s=level.output_tokens_per_s or None,
        tpot_p50_ms=level.tpot_ms.p50 if level.tpot_ms else None,
        prefill_share=level.audit.prefill_share,
    )


def repriced(evaluation: Evaluation, what_if: WhatIf) -> Evaluation:
    """Return the document at the price chosen afterwards; the same object where none was chosen or known."""
    prices = [choose_pricing(evaluation, what_if, result.variant) for result in evaluation.variants]
    stored = [choose_pricing(evaluation, WhatIf(), result.variant) for result in evaluation.variants]
    if all(new is None or new == old for new, old in zip(prices, stored, strict=True)):
        return evaluation
    variants = [
        _repriced_result(result, pricing, what_if) for result, pricing in zip(evaluation.variants, prices, strict=True)
    ]
    chosen = what_if.model_dump(include={"discount", "input_output_ratio"}) | {"price_per_hour": what_if.per_hour}
    options = evaluation.options.model_copy(update={name: value for name, value in chosen.items() if value is not None})
    return evaluation.model_copy(update={"variants": variants, "options": options})


def _repriced_result(result: VariantResult, pricing: Pricing | None, what_if: WhatIf) -> VariantResult:
    """Compute every level's prices anew. A chosen hourly price replaces the variant's own."""
    if pricing is None:
        return result
    levels = [level.model_copy(update={"price": level_price(pricing, level)}) for level in result.levels]
    variant = result.variant
    if what_if.per_hour is not None and variant.remote is not None:
        variant = variant.model_copy(update={"remote": variant.remote.model_copy(update={"usd_per_hour": None})})
    return result.model_copy(update={"levels": levels, "variant": variant})
