"""What serving would cost: the price while latency limits hold, against a hosted API, and for so many requests a month.
Pure.

A what-if on stored measurements: an hourly price and limits are chosen afterwards, nothing runs again. Between measured
levels a monotone curve is read (`monotone`), beyond them nothing: a limit that holds at the highest measured
concurrency answers with that level and says that more may fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from backend.domain.evaluation.document import Evaluation, Level, Price, Variant, VariantResult
from backend.domain.evaluation.prices import MILLION, SECONDS_AN_HOUR, Pricing, level_prices
from backend.domain.evaluation.soundness import is_sound
from backend.domain.frozen import Frozen
from backend.domain.limits.slo import Slo
from backend.domain.load.load import Load
from backend.domain.maths import monotone

HOURS_A_MONTH = 730.0
"""365 days of 24 hours over 12, as AWS counts."""


class OperatingPoint(Frozen):
    """One machine at the highest load within the limits, read off a curve: its streams need not be whole.

    Tokens/s are None where answers did not tell their tokens, there or, between levels, at any of them.
    """

    load: Load
    output_tokens_per_s: float | None
    input_tokens_per_s: float | None
    requests_per_s: float
    interpolated: bool
    """Between two measured levels; else it is one of them."""
    at_the_end: bool
    """The limits still hold at the highest measured concurrency: more may fit, which was not measured."""


class ApiPrice(Frozen):
    """What a hosted API asks, in the currency of the hourly price, per million tokens."""

    per_million_input: float = Field(ge=0)
    per_million_output: float = Field(ge=0)


class BreakEven(Frozen):
    """`share` of the hour's full load from which the machine is cheaper than the API; above 1 it never is."""

    api_per_hour: float | None
    """What the API asks for the tokens that the machine serves in a full hour; None where they were not counted."""
    share: float | None
    requests_per_hour: float | None
    """None where the machine never is the cheaper one."""


class MonthlyCost(Frozen):
    """`machines` whole ones, always on, so that the peak is served within the limits."""

    machines: int
    cost: float
    cost_per_request: float
    utilisation: float
    """Mean load over what these machines serve within the limits, 0 to 1."""


def operating_point(result: VariantResult, limits: Slo) -> OperatingPoint | None:
    """Where the variant runs best under the limits; None where none of its sound levels, nor a curve between them,
    keeps them."""
    # one a load: at low rates several levels come to the same number of requests under way
    by_load = {level.load: level for level in result.levels if is_sound(level)}
    levels = [by_load[load] for load in sorted(by_load)]
    highest = _highest(levels, limits)
    return None if highest is None else _operating(levels, highest)


def _place(level: Level) -> float:
    """Its logarithm is what the curve is drawn over. A trace, which is alone, may stand anywhere."""
    return level.load.value or 1.0


def _highest(levels: Sequence[Level], limits: Slo) -> float | None:
    """The logarithm of the highest load at which every limited latency is within its limit."""
    if not levels:
        return None
    found = [math.log(_place(levels[-1]))]
    for name, limit in (("ttft_ms", limits.ttft_p95_ms), ("tpot_ms", limits.tpot_p95_ms)):
        if limit is None:
            continue
        measured = [(level, getattr(level, name)) for level in levels]
        if any(summary is None for _, summary in measured):
            return None
        x, y = [math.log(_place(level)) for level, _ in measured], [summary.p95 for _, summary in measured]
        at = monotone.find_last_at_most(x, y, limit)
        if at is None:
            return None
        found.append(at)
    return min(found)


def _operating(levels: Sequence[Level], at: float) -> OperatingPoint:
    x = [math.log(_place(level)) for level in levels]
    exact = next((level for level, place in zip(levels, x, strict=True) if math.isclose(place, at, abs_tol=1e-9)), None)

    def read(values: Sequence[float | None]) -> float | None:
        if exact is not None:
            return values[levels.index(exact)]
        told = [value for value in values if value is not None]
        return monotone.monotone_curve(x, told)(at) if len(told) == len(values) else None

    return OperatingPoint(
        load=exact.load if exact else Load(levels[0].load.mode, math.exp(at)),
        output_tokens_per_s=read([level.output_tokens_per_s for level in levels]),
        input_tokens_per_s=read([level.input_tokens_per_s for level in levels]),
        requests_per_s=read([_requests_per_s(level) for level in levels]) or 0.0,
        interpolated=exact is None,
        at_the_end=math.isclose(at, x[-1], abs_tol=1e-9),
    )


def _requests_per_s(level: Level) -> float:
    """Answered requests a second of the level's duration."""
    return level.answers / level.duration_s if level.duration_s > 0 else 0.0


def break_even(pricing: Pricing, at: OperatingPoint, api: ApiPrice) -> BreakEven:
    """The load at which an hour of the machine costs what the API asks for the same tokens."""
    if at.input_tokens_per_s is None or at.output_tokens_per_s is None:
        return BreakEven(api_per_hour=None, share=None, requests_per_hour=None)
    a_second = at.input_tokens_per_s * api.per_million_input + at.output_tokens_per_s * api.per_million_output
    asked = a_second * SECONDS_AN_HOUR / MILLION
    share = pricing.hour / asked if asked > 0 else None
    reached = share is not None and share <= 1
    requests = share * at.requests_per_s * SECONDS_AN_HOUR if share is not None and reached else None
    return BreakEven(api_per_hour=asked, share=share, requests_per_hour=requests)


def monthly_cost(pricing: Pricing, at: OperatingPoint, requests: float, peak: float = 1.0) -> MonthlyCost | None:
    """`requests` a month, the busiest moment `peak` times the mean; None where the machine answers nothing.

    machines = ceil(requests / month x peak / requests a second of one machine within the limits), at least one.
    """
    if at.requests_per_s <= 0 or requests <= 0:
        return None
    mean = requests / (HOURS_A_MONTH * SECONDS_AN_HOUR)
    machines = max(1, math.ceil(mean * peak / at.requests_per_s))
    cost = machines * pricing.hour * HOURS_A_MONTH
    return MonthlyCost(
        machines=machines,
        cost=cost,
        cost_per_request=cost / requests,
        utilisation=mean / (machines * at.requests_per_s),
    )


class WhatIf(Frozen):
    """Chosen after the fact, for the report's costs. `per_hour` None is the price that was given with the
    evaluation."""

    limits: Slo = Slo()
    """Of 95th percentiles of a level: at which load its price is read."""
    request_limits: dict[str, float] = Field(default_factory=dict)
    """Latency -> milliseconds that each request must keep: what goodput counts."""
    per_hour: float | None = Field(None, ge=0)
    discount: float | None = Field(None, ge=0, lt=1)
    input_output_ratio: float | None = Field(None, gt=0)
    """Input tokens for one output token in the blended prices."""
    price_source: str | None = None
    api: ApiPrice | None = None
    requests_a_month: float | None = Field(None, gt=0)
    peak: float = Field(2.0, ge=1)


def choose_pricing(evaluation: Evaluation, what_if: WhatIf, variant: Variant | None = None) -> Pricing | None:
    """The price chosen afterwards, else the variant's own, else the one given with the evaluation; None without any."""
    stored = evaluation.options
    known = stored.hourly_price(variant) if variant else stored.price_per_hour
    hour = what_if.per_hour if what_if.per_hour is not None else known
    if hour is None:
        return None
    discount = stored.discount if what_if.discount is None else what_if.discount
    ratio = stored.input_output_ratio if what_if.input_output_ratio is None else what_if.input_output_ratio
    return Pricing(per_hour=hour, discount=discount, input_output_ratio=ratio)


def level_price(pricing: Pricing, level: Level) -> Price | None:
    """What a measured level costs; None without a price an hour or a throughput."""
    return level_prices(
        pricing,
        concurrency=level.concurrency,
        input_tokens_per_s=level.input_tokens_per_s or None,
        output_tokens_per_s=level.output_tokens_per_s or None,
        tpot_p50_ms=level.tpot_ms.p50 if level.tpot_ms else None,
        prefill_share=level.audit.prefill_share,
    )


def repriced(evaluation: Evaluation, what_if: WhatIf) -> Evaluation:
    """At the price chosen afterwards; the very same document where none was chosen, or none is known."""
    prices = [choose_pricing(evaluation, what_if, result.variant) for result in evaluation.variants]
    stored = [choose_pricing(evaluation, WhatIf(), result.variant) for result in evaluation.variants]
    if all(new is None or new == old for new, old in zip(prices, stored, strict=True)):
        return evaluation
    variants = [_priced(result, each, what_if) for result, each in zip(evaluation.variants, prices, strict=True)]
    chosen = what_if.model_dump(include={"discount", "input_output_ratio"}) | {"price_per_hour": what_if.per_hour}
    options = evaluation.options.model_copy(update={name: value for name, value in chosen.items() if value is not None})
    return evaluation.model_copy(update={"variants": variants, "options": options})


def _priced(result: VariantResult, pricing: Pricing | None, what_if: WhatIf) -> VariantResult:
    """Every level's price anew. An hour that was chosen takes the place of the variant's own."""
    if pricing is None:
        return result
    levels = [level.model_copy(update={"price": level_price(pricing, level)}) for level in result.levels]
    variant = result.variant
    if what_if.per_hour is not None and variant.remote is not None:
        variant = variant.model_copy(update={"remote": variant.remote.model_copy(update={"usd_per_hour": None})})
    return result.model_copy(update={"levels": levels, "variant": variant})
