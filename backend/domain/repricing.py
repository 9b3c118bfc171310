"""The same measurements at another price of the hour: a what-if on what is stored, nothing is run again. Pure."""

from __future__ import annotations

from backend.domain.cost_words import level_price, pricing_of
from backend.domain.evaluation import Evaluation, VariantResult
from backend.domain.prices import Pricing
from backend.domain.report_extras import WhatIf


def as_asked(evaluation: Evaluation, asked: WhatIf) -> Evaluation:
    """At the price chosen afterwards; the very same document where none was chosen, or none is known."""
    pricing = pricing_of(evaluation, asked)
    return evaluation if pricing is None or pricing == pricing_of(evaluation, WhatIf()) else priced(evaluation, pricing)


def repriced(evaluation: Evaluation, per_hour: float | None, discount: float) -> Evaluation:
    """With another hourly price; None leaves the stored one. `discount` is 0 to 1. Without any price, the same document."""
    hour = per_hour if per_hour is not None else evaluation.options.price_per_hour
    if hour is None:
        return evaluation
    ratio = evaluation.options.input_output_ratio
    return priced(evaluation, Pricing(per_hour=hour, discount=discount, input_output_ratio=ratio))


def priced(evaluation: Evaluation, pricing: Pricing) -> Evaluation:
    """Every level's price anew, and the options that say which price it is."""
    options = evaluation.options.model_copy(update={"price_per_hour": pricing.per_hour, "discount": pricing.discount})
    variants = [_priced(result, pricing) for result in evaluation.variants]
    return evaluation.model_copy(update={"variants": variants, "options": options})


def _priced(result: VariantResult, pricing: Pricing) -> VariantResult:
    levels = [level.model_copy(update={"price": level_price(pricing, level)}) for level in result.levels]
    return result.model_copy(update={"levels": levels})
