"""Cost of serving as rows of text cells: the price within the limits, against an API, and for a month. Pure.

The formulas are in `domain.what_if.costs`; this module only words them.
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

NEVER = "no measured load meets these limits"
UNCOUNTED = "tokens not counted"
Row = dict[str, str | int | float | None]
Within = Sequence[OperatingPoint | None]
"""One entry per variant; None if no measured load meets the limits."""
FORMULA = "SageMaker-compatible (the announcement's formula)"


def within_limits(evaluation: Evaluation, what_if: WhatIf) -> Within:
    """Return each variant's highest load that meets the limits."""
    return [costs.operating_point(result, what_if.limits) for result in evaluation.variants]


def rows(evaluation: Evaluation, what_if: WhatIf, operating_points: Within | None = None) -> list[Row]:
    """Return one row per variant, in the evaluation's order. Prices are in USD.

    A cell that cannot be computed says why. `operating_points`: the result of `within_limits`, if it is known.
    """
    if operating_points is None:
        operating_points = within_limits(evaluation, what_if)
    return [
        _row(result, point, choose_pricing(evaluation, what_if, result.variant), what_if)
        for result, point in zip(evaluation.variants, operating_points, strict=True)
    ]


def _row(result: VariantResult, point: OperatingPoint | None, pricing: Pricing | None, what_if: WhatIf) -> Row:
    # 1. The load.
    if point is None:
        return {"Variant": result.name, "Highest load within the limits": NEVER}
    row: Row = {
        "Variant": result.name,
        "Highest load within the limits": load_words(point),
        "Output tokens/s": UNCOUNTED if point.output_tokens_per_s is None else point.output_tokens_per_s,
        "Requests/s": point.requests_per_s,
    }
    # 2. Prices.
    if pricing is None:
        return {**row, "USD per million output tokens": "no price given"}
    row |= _prices(result, pricing, point)
    # 3. Against an API, and for a month.
    if what_if.api is not None:
        row["Cheaper than the hosted API from"] = break_even_words(pricing, point, what_if.api)
    if what_if.requests_a_month:
        month = costs.monthly_cost(pricing, point, what_if.requests_a_month, what_if.peak)
        title = f"{what_if.requests_a_month:,.0f} requests per month"
        row[title] = month_words(month) if month else "no request was answered"
    return row


def _prices(result: VariantResult, pricing: Pricing, point: OperatingPoint) -> Row:
    """Return the prices of input, output and all tokens at the load's rates; blended ones only for a measured load."""
    # Blended prices need measured levels; figures between two levels have none.
    level = None
    if not point.interpolated:
        level = next((level for level in result.levels if level.load == point.load), None)
    price = level_price(pricing, level) if level else None
    # The rate of all tokens, where both rates are known.
    total = None
    if point.input_tokens_per_s is not None and point.output_tokens_per_s is not None:
        total = point.input_tokens_per_s + point.output_tokens_per_s
    return {
        "USD per million input tokens": _price(pricing, point.input_tokens_per_s),
        "USD per million output tokens": _price(pricing, point.output_tokens_per_s),
        "USD per million tokens, total": _price(pricing, total),
        f"Blended {pricing.input_output_ratio:g}:1": price.blended if price else None,
        f"{FORMULA} {pricing.input_output_ratio:g}:1": price.blended_sagemaker if price else None,
    }


def _price(pricing: Pricing, tokens_per_s: float | None) -> float | str | None:
    return UNCOUNTED if tokens_per_s is None else price_per_million(pricing.hour, tokens_per_s)


def load_words(point: OperatingPoint) -> str:
    """Return the load in words, and whether it was measured or interpolated."""
    if point.interpolated:
        about = Load(point.load.mode, round(point.load.value, 1))
        return f"about {about.words}, interpolated between measured levels"
    return f"{point.load.words}, measured{'; more may fit' if point.at_the_end else ''}"


def break_even_words(pricing: Pricing, point: OperatingPoint, api: ApiPrice) -> str:
    """Return the share of its full load from which the machine is cheaper than the API."""
    break_even = costs.break_even(pricing, point, api)
    if break_even.api_per_hour is None:
        return UNCOUNTED
    if break_even.share is None:
        return "the API is free"
    if break_even.requests_per_hour is None:
        return f"never: at full load the API costs {figure(break_even.api_per_hour)} USD per hour"
    return f"{break_even.share:.0%} of full load ({figure(break_even.requests_per_hour)} requests per hour)"


def month_words(month: MonthlyCost) -> str:
    """Return the cost of a month, its machines and their use."""
    machines = counted(month.machines, "machine")
    cost = f"{figure(month.cost)} USD on {machines}, {month.utilisation:.0%} used"
    return f"{cost}, {figure(month.cost_per_request)} USD per request"


def limits_words(limits: Slo) -> str:
    """`TTFT p95 at most 300 ms and TPOT p95 at most 40 ms`, or `no limit`."""
    known = (("TTFT", limits.ttft_ms), ("TPOT", limits.tpot_ms))
    name_and_limit = [(name, limit) for name, limit in known if limit is not None]
    sentences = [f"{name} {limits.percentile} at most {figure(limit)} ms" for name, limit in name_and_limit]
    return " and ".join(sentences) or "no limit"


def basis(evaluation: Evaluation, what_if: WhatIf, operating_points: Within | None = None) -> list[str]:
    """Return the assumptions of the rows as sentences. `operating_points` as in `rows`."""
    if operating_points is None:
        operating_points = within_limits(evaluation, what_if)
    return [
        f"Limits: {limits_words(what_if.limits)}.",
        hour_words(evaluation, what_if),
        *_api(what_if.api),
        *_busy(what_if),
        _source_words(operating_points),
    ]


def hour_words(evaluation: Evaluation, what_if: WhatIf) -> str:
    """Return the hourly price that prices are computed with, and whether it was chosen afterwards."""
    # 1. The price of now, the price that was entered with the evaluation, and those of endpoints.
    pricing, original = choose_pricing(evaluation, what_if), choose_pricing(evaluation, WhatIf())
    own = _own_hours(evaluation, what_if)
    if pricing is None:
        return own or "No hourly price is known."
    source = f" ({what_if.price_source})" if what_if.price_source else ""
    # 2. What was changed since the evaluation.
    before = f"the evaluation itself used {_hour(original)}" if original else "the evaluation itself had no price"
    changed = "" if original and _hour(pricing) == _hour(original) else f" This was chosen afterwards; {before}."
    ratio, stored = pricing.input_output_ratio, evaluation.options.input_output_ratio
    if ratio != stored:
        changed += (
            f" Blended prices use {ratio:g} input tokens per output token; the evaluation itself used {stored:g}."
        )
    # 3. The sentences.
    machine = f"An hour costs {_hour(pricing, source)}.{changed} The speed is that of the machine that was measured."
    return f"{machine} {own}".rstrip()


def _own_hours(evaluation: Evaluation, what_if: WhatIf) -> str:
    """Return one sentence per endpoint on the price of its instances; empty if one price was chosen for all."""
    if what_if.per_hour is not None:
        return ""
    sentences = []
    for result in evaluation.variants:
        remote = result.variant.remote
        if remote is None or remote.usd_per_hour is None:
            continue
        price = f"{remote.usd_per_hour:g} USD, on demand in {remote.price_region}"
        discount = price_list.discount_text(remote.discount)
        sentences.append(f"An hour of {code(result.name)} costs {price}{discount} ({remote.instances}).")
    return " ".join(sentences)


def _hour(pricing: Pricing, source: str = "") -> str:
    return f"{pricing.per_hour:g} USD{source}" + (f", less {pricing.discount * 100:g}%" if pricing.discount else "")


def price_words(evaluation: Evaluation, metric: str) -> str:
    """Explain a price in a sentence or two; `metric` is a field of Price."""
    ratio, parts = (f"{evaluation.options.input_output_ratio + more:g}" for more in (0, 1))
    blend = f"{ratio} input tokens per output token"
    return {
        "per_million_input": "The whole hour is charged to the input tokens: do not add the price of output tokens.",
        "per_million_output": "The whole hour is charged to the output tokens: do not add the price of input tokens.",
        "per_million_total": "The hour is charged once, to input and output tokens together.",
        "blended": f"{blend}: ({ratio} x input + output) / {parts}. {_split(evaluation)}",
        "blended_sagemaker": f"The announcement's formula, {blend}: the hourly price / the millions of tokens per hour "
        f"that concurrency / p50 inter-token latency gives / {parts}. It ignores prefill and prices input at 0.",
    }[metric]


def _split(evaluation: Evaluation) -> str:
    """Return how the hour is divided between prefill and decode."""
    shares = [level.audit.prefill_share for result in evaluation.variants for level in result.levels]
    known = [share for share in shares if isinstance(share, int | float)]
    if not known:
        return "The shares of prefill and decode are not known here, so there is no such price."
    span = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (min(known), max(known))))
    estimated = "estimated by the client as time to first token over content latency"
    return f"{span} of the hour is charged to input (prefill), the rest to output tokens (decode), {estimated}."


def _api(api: ApiPrice | None) -> list[str]:
    if api is None:
        return []
    prices = (
        f"{api.per_million_input:g} USD per million input and {api.per_million_output:g} USD per million output tokens"
    )
    return [f"The hosted API costs {prices}, as entered."]


def _busy(what_if: WhatIf) -> list[str]:
    if not what_if.requests_a_month:
        return []
    hours = f"A month has {costs.HOURS_A_MONTH:.0f} hours; machines are counted whole and always run"
    return [f"{hours}; the peak is {what_if.peak:g} times the mean load."]


def _source_words(operating_points: Within) -> str:
    if any(point is not None and point.interpolated for point in operating_points):
        return "Figures between measured levels are read from a monotone curve; beyond them there are none."
    return "Only measured levels are used."
