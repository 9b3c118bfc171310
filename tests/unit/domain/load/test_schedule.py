"""ABBA order: complete, alternating, and blind to a steady drift."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from statistics import fmean
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import RequestError
from backend.domain.load.order import Slot, schedule

Interleave = Literal["resident", "restart"]
VARIANTS = st.integers(1, 6)
LEVELS = st.lists(st.integers(1, 256), min_size=1, max_size=5, unique=True)
INTERLEAVE = st.sampled_from(["resident", "restart"])


@given(VARIANTS, LEVELS, st.integers(1, 7), INTERLEAVE)
def test_every_block_level_and_variant_comes_exactly_once(
    variants: int, levels: list[int], repeats: int, interleave: Interleave
) -> None:
    counts = Counter(schedule(variants, levels, repeats, interleave))
    assert counts == Counter({Slot(b, c, v): 1 for b in range(repeats) for c in levels for v in range(variants)})


@given(VARIANTS, LEVELS, st.integers(1, 7), INTERLEAVE)
def test_the_order_of_variants_turns_round_with_every_block(
    variants: int, levels: list[int], repeats: int, interleave: Interleave
) -> None:
    orders = defaultdict(list)
    for slot in schedule(variants, levels, repeats, interleave):
        orders[slot.block, slot.level].append(slot.variant)
    for (block, _), order in orders.items():
        assert order == sorted(order, reverse=block % 2 == 1)


@given(VARIANTS, LEVELS, st.integers(1, 4), INTERLEAVE, st.floats(-2, 2))
def test_a_linear_drift_adds_the_same_to_every_variant_over_even_blocks(
    variants: int, levels: list[int], pairs: int, interleave: Interleave, drift: float
) -> None:
    observed = defaultdict(list)
    for position, slot in enumerate(schedule(variants, levels, 2 * pairs, interleave)):
        observed[slot.level, slot.variant].append(drift * position)
    for level in levels:
        means = [fmean(observed[level, variant]) for variant in range(variants)]
        assert max(means) - min(means) <= 1e-9 * (1 + max(map(abs, means)))


@given(st.integers(2, 6), LEVELS, st.integers(1, 6))
def test_restart_starts_each_server_once_a_block_and_keeps_the_last_one_up(
    variants: int, levels: list[int], repeats: int
) -> None:
    slots = schedule(variants, levels, repeats, "restart")
    starts = 1 + sum(a.variant != b.variant for a, b in pairwise(slots))
    assert starts == variants * repeats - (repeats - 1)


def test_three_variants_run_forward_then_backward_at_each_level() -> None:
    assert [slot.variant for slot in schedule(3, [4], 2)] == [0, 1, 2, 2, 1, 0]
    assert [(slot.level, slot.variant) for slot in schedule(2, [1, 8], 1)] == [(1, 0), (1, 1), (8, 0), (8, 1)]


def test_a_level_named_twice_counts_once() -> None:
    assert schedule(2, [4, 4], 1) == schedule(2, [4], 1)


@pytest.mark.parametrize(("variants", "levels", "repeats"), [(0, [1], 1), (1, [], 1), (1, [1], 0)])
def test_nothing_to_measure_is_refused(variants: int, levels: list[int], repeats: int) -> None:
    with pytest.raises(RequestError, match="at least one"):
        schedule(variants, levels, repeats)
