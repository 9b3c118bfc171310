"""Allocation under a budget: exactly the best by exhaustive search, never worse with more budget, never over it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.maths.knapsack import KnapsackChoice, allocate, least_budget
from backend.domain.recipe.precision import SIXTEEN, MeasuredGroup, Precision, average_bits, candidates

LOSSES = st.one_of(st.integers(0, 20).map(float), st.floats(0, 1e3, allow_subnormal=False))
CHOICES = st.lists(st.builds(KnapsackChoice, st.integers(0, 30), LOSSES), min_size=1, max_size=4)
GROUPS = st.lists(CHOICES, min_size=1, max_size=5)


def total(groups: list[list[KnapsackChoice]], chosen: tuple[int, ...] | list[int]) -> tuple[int, float]:
    used = [choices[index] for choices, index in zip(groups, chosen, strict=True)]
    return sum(choice.cost for choice in used), sum(choice.loss for choice in used)


def cheapest(groups: list[list[KnapsackChoice]]) -> int:
    return sum(min(choice.cost for choice in choices) for choices in groups)


@given(GROUPS, st.integers(0, 80))
def test_it_is_what_an_exhaustive_search_finds(groups: list[list[KnapsackChoice]], spare: int) -> None:
    budget = cheapest(groups) + spare
    cost, loss = total(groups, allocate(groups, budget))
    every = (total(groups, chosen) for chosen in itertools.product(*(range(len(choices)) for choices in groups)))
    best = min(loss for cost, loss in every if cost <= budget)
    assert cost <= budget
    assert loss == pytest.approx(best, rel=1e-9, abs=1e-9)


@given(GROUPS, st.integers(0, 60), st.integers(0, 60))
def test_more_budget_never_loses_more(groups: list[list[KnapsackChoice]], spare: int, more: int) -> None:
    budget = cheapest(groups) + spare
    _, tight = total(groups, allocate(groups, budget))
    _, loose = total(groups, allocate(groups, budget + more))
    assert loose <= tight + 1e-9


@given(GROUPS)
def test_below_the_cheapest_is_refused(groups: list[list[KnapsackChoice]]) -> None:
    with pytest.raises(ValueError, match="which the cheapest choices cost"):
        allocate(groups, cheapest(groups) - 1)


@given(GROUPS, st.floats(0, 2e3))
def test_the_least_budget_is_enough_and_one_less_is_not(groups: list[list[KnapsackChoice]], target: float) -> None:
    budget = least_budget(groups, target)
    if budget is None:
        assert sum(min(choice.loss for choice in choices) for choices in groups) > target - 1e-9
        return
    assert total(groups, allocate(groups, budget))[1] <= target
    if budget > cheapest(groups):
        assert total(groups, allocate(groups, budget - 1))[1] > target


def test_a_model_of_eighty_layers_is_allocated_at_once() -> None:
    """Many groups of few different sizes, as models have them, with losses that no two share."""
    sizes = [(4, 8, 16), (3, 6, 12), (20, 41, 80), (11, 20, 40)]
    groups = [
        [
            KnapsackChoice(row[n] * 1024, loss / (1 + layer % 17 + number * 0.13) ** 1.5)
            for n, loss in enumerate((1.0, 0.02, 0.0))
        ]
        for layer in range(80)
        for number, row in enumerate(sizes)
    ]
    budget = cheapest(groups) * 9 // 8
    cost, loss = total(groups, allocate(groups, budget))
    assert cost <= budget
    naive, spent = 0.0, 0  # whole layers from the first on, as long as they fit
    for choices in groups:
        raised = spent + choices[1].cost + cheapest(groups) - spent <= budget and spent < budget - cheapest(groups)
        spent += choices[1].cost - choices[0].cost if raised else 0
        naive += choices[1 if raised else 0].loss
    assert loss < naive


def test_candidates_and_what_they_cost() -> None:
    four = {"method": "awq", "bits": 4, "group_size": 128, "symmetric": False}
    result = candidates(four, "int8")
    assert [precision.name for precision in result] == ["int4-g128", "int4-g32", "int8", "16-bit"]
    assert [precision.stored_bits(2, 256) for precision in result] == [
        2 * (1024 + 2 * 20),
        2 * (1024 + 8 * 20),
        2 * 2064,
        8192,
    ]
    assert [p.name for p in candidates({**four, "group_size": 32}, "w8a8")] == ["int4-g32", "w8a8", "16-bit"]
    assert [p.name for p in candidates({"method": "fp8", "bits": 8, "symmetric": True}, "w8a8")] == ["fp8", "16-bit"]
    group = MeasuredGroup(name="a", linears=["a"], shapes=[(2, 256)], losses={})
    assert average_bits([group, group], [SIXTEEN, Precision(method="int8", bits=8)]) == (16 + 8 + 16 / 256) / 2
