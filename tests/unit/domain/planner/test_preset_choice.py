"""Whom a preset suits, and which wins: by figures of one load, within limits."""

from __future__ import annotations

import pytest

from backend.domain.planner import preset_choice
from backend.domain.planner.estimate import Estimate
from backend.domain.planner.preset_choice import choose_preset, suits
from backend.domain.planner.target_choice import TargetGoal

CHEAP_TOKEN = TargetGoal(wanted="throughput")


def estimate(tpot: float | None, price: float | None, hour: float | None = 1.0) -> Estimate:
    """One with these middles and nothing else that is read here."""
    ends = {"tpot_ms": tpot, "price_per_million_output": price}
    fields = {name: None if value is None else (value / 2, value * 2) for name, value in ends.items()}
    return Estimate.model_construct(
        target="ml.g5.xlarge",
        price_per_hour=hour,
        instances=1,
        ttft_ms=None,
        max_context=None,
        output_tokens_per_s=None,
        **fields,
    )


FAST, CHEAP = estimate(10.0, 2.0, 4.0), estimate(40.0, 0.5, 2.0)


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (estimate(9.0, 0.4, 9.0), preset_choice.BOTH),
        (estimate(9.0, 9.0, 9.0), preset_choice.FASTEST),
        (estimate(90.0, 0.4, 9.0), preset_choice.CHEAPEST),
        (estimate(90.0, 9.0, 0.1), preset_choice.LIGHT),
        (estimate(20.0, 1.0, 9.0), preset_choice.BETWEEN),
        (estimate(90.0, 9.0, 9.0), preset_choice.BEATEN),
        (estimate(None, 9.0, 9.0), preset_choice.UNKNOWN),
        (None, preset_choice.UNKNOWN),
    ],
)
def test_a_preset_suits_whom_its_figures_say(mine: Estimate | None, words: str) -> None:
    assert suits("mine", {"mine": mine, "fast": FAST, "cheap": CHEAP}) == words


def test_the_cheapest_token_wins_within_the_limits_at_the_worst_end() -> None:
    estimates = {"fast": FAST, "cheap": CHEAP, "unknown": None}
    choice = choose_preset(estimates, CHEAP_TOKEN)
    assert choice.winner == "cheap" and "1 USD per million output tokens" in choice.why
    limited = choose_preset(estimates, TargetGoal(wanted="throughput", max_tpot_ms=25.0))
    assert limited.winner == "fast" and "of those that meet your latency limits" in limited.why
    nobody = choose_preset(estimates, TargetGoal(wanted="throughput", max_tpot_ms=1.0))
    assert nobody.winner is None and "Time per output token is 80 ms at the worst end" in nobody.why


def test_what_is_missing_is_said() -> None:
    assert "No price is known" in choose_preset({"own": estimate(10.0, None, None)}, CHEAP_TOKEN).why
    assert "price per token is not known" in choose_preset({"own": estimate(10.0, None)}, CHEAP_TOKEN).why
    assert "can be estimated" in choose_preset({"own": None}, CHEAP_TOKEN).why
