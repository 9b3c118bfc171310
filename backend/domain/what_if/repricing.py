"""The same measurements at another price of the hour: a what-if on what is stored, nothing is run again. Pure."""

from __future__ import annotations

from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.evaluation.prices import Pricing
from backend.present.report import WhatIf
from backend.present.words.costs import level_price, pricing_of


def as_asked(evaluation: Evaluation, asked: WhatIf) -> Evaluation:
    """At the price chosen afterwards; the very same document where none was chosen, or none is known."""
    pricing = pricing_of(evaluation, asked)
    return evaluation if pricing is None or pricing == pricing_of(evaluation, WhatIf()) else priced(evaluation, pricing)


def priced(evaluation: Evaluation, pricing: Pricing) -> Evaluation:
    """Every level's price anew, and the options that say which price it is."""
    asked = {"price_per_hour": pricing.per_hour, **pricing.model_dump(exclude={"per_hour"})}
    options = evaluation.options.model_copy(update=asked)
    variants = [_priced(result, pricing) for result in evaluation.variants]
    return evaluation.model_copy(update={"variants": variants, "options": options})


def _priced(result: VariantResult, pricing: Pricing) -> VariantResult:
    levels = [level.model_copy(update={"price": level_price(pricing, level)}) for level in result.levels]
    return result.model_copy(update={"levels": levels})
