"""Gives each level the one throughput that every screen, table and report shows, and the prices that follow from it."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from backend.domain.evaluation.document import Evaluation, Level
from backend.domain.evaluation.prices import Pricing
from backend.domain.what_if.costs import WhatIf, choose_pricing, level_price

RATES = ("input_tokens_per_s", "output_tokens_per_s")


def with_slice_means(evaluation: Evaluation) -> Evaluation:
    """Return the document with tokens/s as geometric means over the slices of each level, and its prices by them.

    A verdict's ratio is one of these means, so the figures beside it give it. Applied twice it changes nothing more.
    """
    variants = []
    for result in evaluation.variants:
        pricing = choose_pricing(evaluation, WhatIf(), result.variant)
        levels = [_with_means(level, pricing) for level in result.levels]
        variants.append(result.model_copy(update={"levels": levels}))
    return evaluation.model_copy(update={"variants": variants})


def _with_means(level: Level, pricing: Pricing | None) -> Level:
    """Return the level with its means; the level itself where a slice has no rate."""
    # 1. The rates that every slice has.
    means: dict[str, Any] = {}
    for name in RATES:
        rates = [block[name] for block in level.blocks if block.get(name, 0) > 0]
        if getattr(level, name) and rates and len(rates) == len(level.blocks):
            means[name] = geometric_mean(rates)
    if not means:
        return level
    # 2. The prices, where the level has any.
    changed = level.model_copy(update=means)
    if level.price is None or pricing is None:
        return changed
    return changed.model_copy(update={"price": level_price(pricing, changed)})
