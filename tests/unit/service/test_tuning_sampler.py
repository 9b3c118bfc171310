"""Optuna's samplers propose stacks of the space that were not tried, and learn from those that were."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from backend.domain.tuning import ranking
from backend.domain.tuning.request import Goal, TuneRequest
from backend.domain.tuning.search import Progress
from backend.service.tuning.sampler import FIRST, order_stacks
from tests.helpers.simulated_search import BASELINE, STACKS, make_world, run


@pytest.mark.parametrize("goal", ["cost", "front"])
def test_every_untried_stack_is_in_the_order_once(goal: Goal) -> None:
    request = TuneRequest(model="m", goal=goal, budget_min=30)
    progress = run(request, make_world(random.Random(1)), random.Random(1)).progress
    assert len(ranking.latest_trials(progress.trials)) >= FIRST
    order = [stack.key for stack in order_stacks(request, progress)]
    assert sorted(order) == sorted(stack.key for stack in STACKS if stack.key not in progress.tried)
    assert order == [stack.key for stack in order_stacks(request, progress)], "the same seed gives the same order"


def test_before_anything_is_measured_the_likeliest_come_first() -> None:
    progress = Progress(baseline=BASELINE, stacks=STACKS)
    assert order_stacks(TuneRequest(model="m"), progress) == list(STACKS)


def test_an_engine_that_is_faster_everywhere_is_proposed_first() -> None:
    world = make_world(random.Random(2), noise=0.01)
    truth = {
        stack.key: world.truth[stack.key]._replace(speed=200.0 if stack.engine == "openvino" else 20.0, kl=0.004)
        for stack in (BASELINE, *STACKS)
    }
    first = Counter[str]()
    for seed in range(5):
        request = TuneRequest(model="m", budget_min=30, seed=seed)
        progress = run(request, world._replace(truth=truth), random.Random(seed)).progress
        first.update(stack.engine for stack in order_stacks(request, progress)[:4])
    assert first["openvino"] >= 14, "of 20; a third of the space is OpenVINO's"
