"""Computes prices per million tokens from an hourly price and measured throughput.

A price that cannot be computed is None, never 0.
"""

from __future__ import annotations

from pydantic import Field

from backend.domain.evaluation.document import Price
from backend.domain.frozen import Frozen

SECONDS_AN_HOUR = 3600
MILLION = 1_000_000


class Pricing(Frozen):
    """The price of an hour of the machine. `per_hour` in USD, before `discount` (0 to 1)."""

    per_hour: float = Field(ge=0)
    discount: float = Field(0.0, ge=0, lt=1)
    input_output_ratio: float = Field(3.0, gt=0)
    """Input tokens for one output token in the blended prices; the announcement's is 3."""

    @property
    def hour(self) -> float:
        """The price of an hour after the discount."""
        return (1 - self.discount) * self.per_hour


def price_per_million(hourly: float | None, tokens_per_s: float | None) -> float | None:
    """Return hourly price / (millions of tokens per hour). None without a price or without tokens."""
    if hourly is None or not tokens_per_s or tokens_per_s <= 0:
        return None
    return hourly / (tokens_per_s * SECONDS_AN_HOUR / MILLION)


def blended_price(
    pricing: Pricing, input_tokens_per_s: float | None, output_tokens_per_s: float | None, prefill_share: float | None
) -> float | None:
    """Return (r x in + out) / (r + 1), with `prefill_share` of the hour charged to input tokens, the rest to output
    tokens.

    None without a known split: charging the full hour to both would count it twice.
    """
    if prefill_share is None:
        return None
    # 1. Each side's price, for its part of the hour.
    input_price = price_per_million(prefill_share * pricing.hour, input_tokens_per_s)
    output_price = price_per_million((1 - prefill_share) * pricing.hour, output_tokens_per_s)
    if input_price is None or output_price is None:
        return None
    # 2. Weighted by the tokens of each side.
    ratio = pricing.input_output_ratio
    return (ratio * input_price + output_price) / (ratio + 1)


def blended_sagemaker_price(pricing: Pricing, concurrency: int, tpot_p50_ms: float | None) -> float | None:
    """Return the price by the toolkit announcement's formula: total throughput = concurrency / p50 inter-token latency;
    blended = (1 - discount) x $/h / (throughput x 3600 / 1e6) / 4, where 4 is ratio + 1.

    The formula ignores prefill and prices input at 0: every place that shows it must say so.
    """
    if not tpot_p50_ms or tpot_p50_ms <= 0:
        return None
    price = price_per_million(pricing.hour, concurrency / (tpot_p50_ms / 1000))
    return None if price is None else price / (pricing.input_output_ratio + 1)


def level_prices(
    pricing: Pricing | None,
    *,
    concurrency: int,
    input_tokens_per_s: float | None,
    output_tokens_per_s: float | None,
    tpot_p50_ms: float | None,
    prefill_share: float | None,
) -> Price | None:
    """Return every price of a level; None without an hourly price.

    Per million input and per million output tokens each charge the full hour to those tokens (the documentation page's
    reading), so they must not be added; per million total charges the hour once.

    `prefill_share`, 0 to 1, is the part of the hour spent in prefill. It is an ESTIMATE from the client's side: the sum
    of TTFT over the sum of content latency (TTFT holds prefill and the wait for it, the rest is decode). Without a
    throughput in output tokens the announcement's price is None too: then the inter-token latency is of some answers or
    none.
    """
    if pricing is None:
        return None
    # Prices that need a throughput of output tokens.
    total, sagemaker = None, None
    if output_tokens_per_s is not None:
        sagemaker = blended_sagemaker_price(pricing, concurrency, tpot_p50_ms)
        if input_tokens_per_s is not None:
            total = input_tokens_per_s + output_tokens_per_s
    return Price(
        per_million_input=price_per_million(pricing.hour, input_tokens_per_s),
        per_million_output=price_per_million(pricing.hour, output_tokens_per_s),
        per_million_total=price_per_million(pricing.hour, total),
        blended=blended_price(pricing, input_tokens_per_s, output_tokens_per_s, prefill_share),
        blended_sagemaker=sagemaker,
    )
