"""Raising precision until a floor holds: smallest first, only ever upwards, and never to 16 bits everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.recipe import precision, precision_allocation
from backend.domain.recipe.precision import MeasuredGroup
from backend.domain.recipe.recipe import Limits

CANDIDATES = precision.candidates({"method": "awq", "bits": 4, "group_size": 128, "symmetric": True}, "w8a8")
PERPLEXITY = "perplexity rose by 3.00%, above the recipe's max_perplexity_increase 1.00%"
QUALITY = {"kl_mean": 0.02, "perplexity_before": 10.0, "perplexity_after": 10.3}


def group(number: int, size: int, losses: tuple[float, float, float]) -> MeasuredGroup:
    named = dict(zip([each.name for each in CANDIDATES], [*losses, 0.0], strict=True))
    return MeasuredGroup(name=f"g{number}", linears=[f"g{number}.a"], shapes=[(128 * size, 256)], losses=named)


SMALL = st.floats(1e-6, 1e-2)
GROUPS = st.lists(st.tuples(st.integers(1, 4), SMALL, SMALL, SMALL), min_size=1, max_size=5).map(
    lambda rows: [
        group(number, size, tuple(sorted(losses, reverse=True))) for number, (size, *losses) in enumerate(rows)
    ]
)


@given(GROUPS, st.floats(1.0001, 50))
def test_a_raised_allocation_costs_more_and_should_keep_the_floor(groups: list[MeasuredGroup], excess: float) -> None:
    last, bits = [CANDIDATES[0]] * len(groups), 0.0
    while (chosen := precision_allocation.raise_precisions(groups, CANDIDATES, last, excess)) is not None:
        assert (
            precision_allocation.predicted_loss(groups, chosen)
            <= precision_allocation.predicted_loss(groups, last) / excess
        )
        assert precision.average_bits(groups, chosen) > max(bits, precision.average_bits(groups, last))
        assert any(each != precision.SIXTEEN for each in chosen)
        last, bits = chosen, precision.average_bits(groups, last)


@given(GROUPS, st.floats(4.2, 16))
def test_an_allocation_keeps_within_the_average(groups: list[MeasuredGroup], target: float) -> None:
    chosen = precision_allocation.allocate(groups, CANDIDATES, target)
    assert precision.average_bits(groups, chosen) <= target
    assert (
        precision_allocation.predicted_loss(groups, chosen)
        <= precision_allocation.predicted_loss(groups, [CANDIDATES[0]] * len(groups)) + 1e-12
    )


def test_what_loses_most_is_raised_first() -> None:
    groups = [group(0, 1, (1e-4, 1e-5, 1e-6)), group(1, 1, (9e-3, 5e-3, 1e-5))]
    chosen = precision_allocation.raise_precisions(groups, CANDIDATES, [CANDIDATES[0]] * 2, 5.0)
    assert chosen is not None and [each.name for each in chosen] == ["int4-g128", "w8a8"]
    record = precision_allocation.precision_record(groups, chosen, CANDIDATES[0], None, [])
    assert record["groups"][1] | {"losses": {}} == {
        "name": "g1",
        "linears": 1,
        "weights": 128 * 256,
        "precision": "w8a8",
        "bits": 8,
        "words": chosen[1].words,
        "losses": {},
    }


@pytest.mark.parametrize(
    ("limits", "excess", "message"),
    [
        (Limits(), 0.0, None),
        (Limits(max_kl=0.02), 1.0, None),
        (Limits(max_kl=0.01), 2.0, "mean KL divergence is 0.0200, above the recipe's max_kl 0.01"),
        (Limits(max_kl=0.1, max_perplexity_increase=0.01), 3.0, PERPLEXITY),
    ],
)
def test_how_far_a_floor_was_missed(limits: Limits, excess: float, message: str | None) -> None:
    assert precision_allocation.limit_excess(limits, QUALITY) == pytest.approx(excess)
    assert precision_allocation.missed_limit(limits, QUALITY) == message
