"""What serving would cost, as rows of written cells: the price within limits, against an API, for a month. Pure.

`costs` has the formulas; here is only how they are said.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.evaluation.prices import Pricing, price_per_million
from backend.domain.figures import code, counted, figure
from backend.domain.limits.slo import Slo
from backend.domain.load.load import Load
from backend.domain.machine import price_list
from backend.domain.what_if import costs
from backend.domain.what_if.costs import ApiPrice, MonthlyCost, OperatingPoint, WhatIf, choose_pricing, level_price

NEVER = "no measured load keeps these limits"
UNCOUNTED = "tokens not counted"
Row = dict[str, str | int | float | None]
Within = Sequence[OperatingPoint | None]
"""Of each variant; None where no measured load keeps the limits."""
FORMULA = "SageMaker-compatible (the announcement's formula)"


def within_limits(evaluation: Evaluation, what_if: WhatIf) -> Within:
    """Where each variant runs best under the limits."""
    return [costs.operating_point(result, what_if.limits) for result in evaluation.variants]


def rows(evaluation: Evaluation, what_if: WhatIf, at: Within | None = None) -> list[Row]:
    """One a variant, in the evaluation's order. Prices in the currency of the hourly price; what cannot be told says
    so.

    `at` is what `within_limits` gave, for whoever has it already.
    """
    found = within_limits(evaluation, what_if) if at is None else at
    return [
        _row(result, each, choose_pricing(evaluation, what_if, result.variant), what_if)
        for result, each in zip(evaluation.variants, found, strict=True)
    ]


def _row(result: VariantResult, at: OperatingPoint | None, pricing: Pricing | None, what_if: WhatIf) -> Row:
    if at is None:
        return {"Variant": result.name, "Highest load within the limits": NEVER}
    found: Row = {
        "Variant": result.name,
        "Highest load within the limits": load_words(at),
        "Output tokens/s": UNCOUNTED if at.output_tokens_per_s is None else at.output_tokens_per_s,
        "Requests/s": at.requests_per_s,
    }
    if pricing is None:
        return {**found, "Price, million output tokens": "no price given"}
    found |= _prices(result, pricing, at)
    if what_if.api is not None:
        found["Cheaper than the hosted API from"] = break_even_words(pricing, at, what_if.api)
    if what_if.requests_a_month:
        month = costs.monthly_cost(pricing, at, what_if.requests_a_month, what_if.peak)
        found[f"{what_if.requests_a_month:,.0f} requests a month"] = (
            month_words(month) if month else "nothing was answered"
        )
    return found


def _prices(result: VariantResult, pricing: Pricing, at: OperatingPoint) -> Row:
    """Input, output and total from the load's own rates; the blended ones only where that load was measured."""
    level = next((each for each in result.levels if not at.interpolated and each.load == at.load), None)
    price = level_price(pricing, level) if level else None
    known = at.input_tokens_per_s is not None and at.output_tokens_per_s is not None
    total = (at.input_tokens_per_s or 0.0) + (at.output_tokens_per_s or 0.0) if known else None
    return {
        "Price, million input tokens": _price(pricing, at.input_tokens_per_s),
        "Price, million output tokens": _price(pricing, at.output_tokens_per_s),
        "Price, million tokens, total": _price(pricing, total),
        f"Blended {pricing.input_output_ratio:g}:1": price.blended if price else None,
        f"{FORMULA} {pricing.input_output_ratio:g}:1": price.blended_sagemaker if price else None,
    }


def _price(pricing: Pricing, tokens_per_s: float | None) -> float | str | None:
    return UNCOUNTED if tokens_per_s is None else price_per_million(pricing.hour, tokens_per_s)


def load_words(at: OperatingPoint) -> str:
    """Where on the curve it is, and whether that was measured."""
    if at.interpolated:
        about = Load(at.load.mode, round(at.load.value, 1))
        return f"about {about.words}, read between measured levels"
    return f"{at.load.words}, measured{'; more may fit' if at.at_the_end else ''}"


def break_even_words(pricing: Pricing, at: OperatingPoint, api: ApiPrice) -> str:
    """From which share of its full load the machine is the cheaper one."""
    break_even = costs.break_even(pricing, at, api)
    if break_even.api_per_hour is None:
        return UNCOUNTED
    if break_even.share is None:
        return "the API is free"
    if break_even.requests_per_hour is None:
        return f"never: at full load the API asks {figure(break_even.api_per_hour)} an hour"
    return f"{break_even.share:.0%} of full load ({figure(break_even.requests_per_hour)} requests an hour)"


def month_words(month: MonthlyCost) -> str:
    """Of a month at a number of requests: its cost, machines and use."""
    machines = counted(month.machines, "machine")
    return (
        f"{figure(month.cost)} on {machines}, {month.utilisation:.0%} used, {figure(month.cost_per_request)} a request"
    )


def limits_words(limits: Slo) -> str:
    """`TTFT p95 at most 300 ms and TPOT p95 at most 40 ms`, or `no limit`."""
    given = (("TTFT", limits.ttft_p95_ms), ("TPOT", limits.tpot_p95_ms))
    found = [f"{name} p95 at most {figure(limit)} ms" for name, limit in given if limit is not None]
    return " and ".join(found) or "no limit"


def basis(evaluation: Evaluation, what_if: WhatIf, at: Within | None = None) -> list[str]:
    """What the rows rest on, as sentences. `at` as in `rows`."""
    return [
        f"Limits: {limits_words(what_if.limits)}.",
        hour_words(evaluation, what_if),
        *_api(what_if.api),
        *_busy(what_if),
        _read(within_limits(evaluation, what_if) if at is None else at),
    ]


def hour_words(evaluation: Evaluation, what_if: WhatIf) -> str:
    """Which price prices are computed with, and whether it was chosen afterwards."""
    pricing, given = choose_pricing(evaluation, what_if), choose_pricing(evaluation, WhatIf())
    own = _own_hours(evaluation, what_if)
    if pricing is None:
        return own or "No hourly price is known."
    source = f" ({what_if.price_source})" if what_if.price_source else ""
    before = f"with the evaluation, {_hour(given)} was given" if given else "no price was given with the evaluation"
    changed = "" if given and _hour(pricing) == _hour(given) else f" This was chosen afterwards; {before}."
    asked, stored = pricing.input_output_ratio, evaluation.options.input_output_ratio
    if asked != stored:
        changed += f" Blended prices take {asked:g} input tokens for one output token, where {stored:g} was given."
    machine = f"An hour costs {_hour(pricing, source)}.{changed} The speed is that of the machine that was measured."
    return f"{machine} {own}".rstrip()


def _own_hours(evaluation: Evaluation, what_if: WhatIf) -> str:
    """What the instances behind endpoints cost, a sentence each; nothing where another hour was chosen for all."""
    if what_if.per_hour is not None:
        return ""
    return " ".join(
        f"An hour of {code(result.name)} costs {where.usd_per_hour:g} USD, on demand in {where.price_region}"
        f"{price_list.discount_text(where.discount)} ({where.instances})."
        for result in evaluation.variants
        if (where := result.variant.remote) is not None and where.usd_per_hour is not None
    )


def _hour(pricing: Pricing, source: str = "") -> str:
    return f"{pricing.per_hour:g}{source}" + (f", less {pricing.discount * 100:g}%" if pricing.discount else "")


def price_words(evaluation: Evaluation, metric: str) -> str:
    """What a price is, in a sentence or two; `metric` is a field of Price."""
    ratio, parts = (f"{evaluation.options.input_output_ratio + more:g}" for more in (0, 1))
    asked = f"{ratio} input tokens for one output token"
    return {
        "per_million_input": "The full hour is charged to the input tokens: do not add it to the price of output tokens.",
        "per_million_output": "The full hour is charged to the output tokens: do not add it to the price of input tokens.",
        "per_million_total": "The hour is charged once, to input and output tokens together.",
        "blended": f"{asked}: ({ratio} x input + output) / {parts}. {_split(evaluation)}",
        "blended_sagemaker": f"The announcement's formula, {asked}: the price of an hour / the million tokens an hour that "
        f"concurrency / p50 inter-token latency comes to / {parts}. It ignores prefill and prices input at 0.",
    }[metric]


def _split(evaluation: Evaluation) -> str:
    """How the hour is divided between prefill and decode."""
    shares = [level.audit.prefill_share for result in evaluation.variants for level in result.levels]
    known = [share for share in shares if isinstance(share, int | float)]
    if not known:
        return "How the hour divides into prefill and decode is not known here, so there is no such price."
    span = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (min(known), max(known))))
    estimated = "estimated on the client's side as time to first token over content latency"
    return (
        f"Of the hour, {span} is charged to input tokens (prefill) and the rest to output tokens (decode), {estimated}."
    )


def _api(api: ApiPrice | None) -> list[str]:
    if api is None:
        return []
    asks = f"{api.per_million_input:g} for a million input and {api.per_million_output:g} for a million output tokens"
    return [f"The hosted API asks {asks}, as entered."]


def _busy(what_if: WhatIf) -> list[str]:
    if not what_if.requests_a_month:
        return []
    hours = f"A month is {costs.HOURS_A_MONTH:.0f} hours; machines are whole and always on"
    return [f"{hours}; the peak is {what_if.peak:g} times the mean load."]


def _read(found: Within) -> str:
    if any(at is not None and at.interpolated for at in found):
        return "Between measured levels a monotone curve is read; beyond them nothing."
    return "Only levels that were measured are read."
