"""One sentence says what a preset gains and costs beside the original."""

from __future__ import annotations

import pytest

from backend.domain.planner.estimate import Estimate
from backend.domain.planner.preset_titles import tradeoff_sentence


def estimate(tpot_ms: float | None, price: float | None) -> Estimate:
    """An estimate with ranges around these figures."""
    fields = {
        "tpot_ms": tpot_ms and (tpot_ms / 2, tpot_ms * 2),
        "price_per_million_output": price and (price / 2, price * 2),
    }
    return Estimate.model_construct(**fields)


@pytest.mark.parametrize(
    ("tpot_ms", "price", "sentence"),
    [
        (10, 8, "Estimated: 2.5x faster per user at 1.6x the price of the original."),
        (50, 2.5, "Estimated: 2.0x slower per user at 0.50x the price of the original."),
        (25.2, 5.05, "Estimated: as fast per user at the same price as the original."),
        (10, None, "Estimated: 2.5x faster per user; the price is not known."),
        (None, 8, "Its speed at this load is not known."),
    ],
)
def test_the_middles_of_both_ranges_are_compared(tpot_ms: float | None, price: float | None, sentence: str) -> None:
    assert tradeoff_sentence(estimate(tpot_ms, price), estimate(25, 5)) == sentence


def test_without_the_original_nothing_is_compared() -> None:
    assert "nothing can be compared" in tradeoff_sentence(estimate(10, 8), None)
