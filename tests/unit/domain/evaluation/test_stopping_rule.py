"""Blocks are added until it is decided: when is looked and at which level is fixed beforehand, and the error rate is
that of one test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.document import Level
from tests.rule_runs import simulate
from tests.simulated import level, result

RUNS = 4000
THREE_SIGMA = 3 * math.sqrt(0.05 * 0.95 / RUNS)


@given(st.integers(6, 1000))
def test_looks_are_fixed_by_the_cap_alone_and_never_spend_more_than_there_is(most: int) -> None:
    places, levels = stopping_rule.blocks_of_tests(most), stopping_rule.significance_levels(most)
    assert places[0] >= 6 and places[-1] == most and list(places) == sorted(set(places)) and len(places) == len(levels)
    assert all(place % 2 == 0 for place in places[:-1]), "an order of variants and its reverse take turns"
    assert sum(levels) == pytest.approx(0.05, abs=1e-12) and all(
        each >= stopping_rule.LEAST_SPENDING / 2 for each in levels
    )
    assert all(stopping_rule.spent_significance(place / most) <= 0.05 * (1 + 1e-12) for place in places)


def test_places_and_levels_of_the_default_cap() -> None:
    """What is spent rises with the square of the share of blocks."""
    assert (
        stopping_rule.blocks_of_tests(20) == (6, 8, 12, 16, 20)
        and stopping_rule.blocks_of_tests(7) == (6, 7)
        and stopping_rule.blocks_of_tests(6) == (6,)
    )
    assert stopping_rule.blocks_of_tests(40) == (6, 8, 12, 16, 22, 30, 40)
    assert stopping_rule.blocks_of_tests(1000)[0] == 16, "after 12 of 1000 next to nothing could be spent"
    after = 0.05 * (np.array(stopping_rule.blocks_of_tests(20)) / 20) ** 2
    assert stopping_rule.significance_levels(20) == pytest.approx(
        np.diff(after, prepend=0.0)
    ) and stopping_rule.significance_levels(6) == pytest.approx((0.05,))


@pytest.mark.parametrize(("most", "noise"), [(12, 0.05), (20, 0.02), (20, 0.1), (40, 0.3)])
def test_a_server_against_itself_differs_in_at_most_five_percent_of_evaluations(most: int, noise: float) -> None:
    """At any look, so also at the last; with metrics that are alike, and with ones that are not."""
    for alike in (0.0, 0.9):
        ended = simulate(RUNS, most, noise=noise, alike=alike, seed=most)
        assert ended.named.mean() <= ended.ever.mean() <= 0.05 + THREE_SIGMA


def test_looking_at_five_percent_every_time_would_name_far_more() -> None:
    """What the rule is there for."""
    every = tuple((place, 0.05) for place in stopping_rule.blocks_of_tests(40))
    assert simulate(RUNS, 40, noise=0.3, tests=1, awaited=1, schedule=every).ever.mean() > 0.10


@pytest.mark.parametrize("effect", [0.0, 0.05, 0.3])
def test_the_interval_at_the_end_covers_its_ratio_with_95_percent_wherever_it_ended(effect: float) -> None:
    ended = simulate(RUNS, 20, effect=effect, noise=0.1, tests=1, awaited=1, seed=3)
    assert ended.missed.mean() <= 0.05 + THREE_SIGMA


def test_a_clear_difference_needs_few_blocks_and_a_small_one_is_rarely_missed() -> None:
    clear = simulate(RUNS, 20, effect=math.log(1.4), noise=0.05)
    assert clear.decided.mean() > 0.999 and clear.blocks.mean() < 9
    fixed = ((20, 0.05),)
    small, by_all = (simulate(RUNS, 20, effect=0.10, noise=0.1, schedule=schedule) for schedule in (None, fixed))
    assert by_all.decided.mean() - 0.3 < small.decided.mean() <= by_all.decided.mean() + 0.02
    assert small.blocks.mean() < 18
    sliced = simulate(RUNS, 20, effect=0.10, noise=0.1, slices=6)
    assert sliced.decided.mean() > 0.99 and sliced.blocks.mean() < 8, "alternating requests decide it at once"
    same = simulate(RUNS, 40, noise=0.05)
    assert same.blocks.mean() < 25 and np.quantile(same.blocks, 0.9) < 40, "sameness ends it too"


def two_levels(noise: float, speed: float = 1.0, blocks: int = 8, **changes: object) -> list[tuple[str, Level]]:
    return [
        ("original", level(4, repeats=blocks, noise=noise)),
        ("w8a8", level(4, speed, repeats=blocks, noise=noise, **changes)),
    ]


@pytest.mark.parametrize(
    ("created", "waited_for"),
    [
        (two_levels(0.005, 1.5), 0),
        (two_levels(0.005, seed=1), 0),
        (two_levels(0.4, seed=1), 1),
        (two_levels(0.4, blocks=4, seed=1), 1),
        (two_levels(0.4, seed=1, client_limited=True), 0),
    ],
    ids=["faster", "same", "noisy", "few", "held back"],
)
def test_what_is_waited_for_is_what_more_blocks_may_decide(created: list[tuple[str, Level]], waited_for: int) -> None:
    undecided = stopping_rule.find_undecided(compare([result(name, [each]) for name, each in created]))
    assert [row.metric for row in undecided] == ["output_tokens_per_s"] * waited_for
