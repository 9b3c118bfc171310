"""A search keeps to its budget and bounds, never ends with nothing, and says of every stack why it lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.limits.slo import Slo
from backend.domain.tuning import ranking, search
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.search import Finish, Make, Measure, Progress
from backend.domain.tuning.stacks import WEIGHTS, SpaceChoice, list_stacks
from backend.domain.tuning.trials import Round
from tests.helpers.simulated_search import BASELINE, ENGINES, STACKS, World, make_world, run, true_score

REQUEST = TuneRequest(model="m", budget_min=40, max_kl=0.03)


def winner_key(world: World, request: TuneRequest, seed: int) -> str:
    ended = run(request, world, random.Random(seed))
    head = ranking.rank(ended.progress.trials, request, baseline=BASELINE.key)[0]
    assert head.standing == "winner", head
    return head.trial.key


@given(
    seed=st.integers(0, 10_000),
    slowness=st.sampled_from([0.3, 1.0, 2.5, 6.0]),
    minutes=st.sampled_from([2.0, 5.0, 12.0, 40.0]),
    broken=st.integers(0, 8),
    limits=st.sampled_from([Slo(), Slo(ttft_ms=60), Slo(ttft_ms=1, tpot_ms=1)]),
)
def test_no_search_passes_its_budget_or_ends_without_reasons(
    seed: int, slowness: float, minutes: float, broken: int, limits: Slo
) -> None:
    rng = random.Random(seed)
    world = make_world(rng, slowness=slowness, broken=broken)
    request = REQUEST.model_copy(update={"budget_min": minutes, "limits": limits, "disk_gb": 0.25})
    ended = run(request, world, rng)
    progress = ended.progress
    # 1. Time and disk. A machine slower than any guess may cut off a step, and then nothing more begins.
    assert progress.spent_s <= 60 * minutes + 1e-6
    assert ended.overran <= 1 or slowness > 1
    assert progress.spent_bytes <= request.disk_gb * 1e9 + 10**8
    # 2. Nothing outside the space was measured, nothing twice in one kind of round.
    for kind in ("screen", "halve", "race"):
        keys = [key for one in progress.rounds if one.kind == kind for key in one.keys]
        assert len(keys) == len(set(keys)) and set(keys) <= {stack.key for stack in STACKS}
    # 3. A reason for everything, and a nearest stack where none is allowed.
    ranked = ranking.rank(progress.trials, request, baseline=BASELINE.key)
    untried = search.untried_words(request, progress)
    assert set(search.untried_words(request, progress, may_follow=True)) == set(untried)
    measured = {one.trial.key for one in ranked}
    assert measured | set(untried) | {BASELINE.key} >= {stack.key for stack in STACKS}
    assert all(one.words for one in ranked) and ended.finish.reason
    if any(one.score is not None for one in ranked):
        assert sum(one.standing in {"winner", "nearest"} for one in ranked) == 1


@given(st.integers(0, 10_000))
def test_who_wins_meets_every_limit(seed: int) -> None:
    rng = random.Random(seed)
    world = make_world(rng)
    request = REQUEST.model_copy(update={"limits": Slo(ttft_ms=150)})
    ranked = ranking.rank(run(request, world, rng).progress.trials, request, baseline=BASELINE.key)
    winner = next((one.trial for one in ranked if one.standing == "winner"), None)
    if winner is not None:
        assert winner.kl is None or winner.kl <= 0.03
        assert all(level.ttft_ms is not None and level.ttft_ms <= 150 for level in winner.levels)


def test_with_time_for_everything_the_best_is_found() -> None:
    request = REQUEST.model_copy(update={"budget_min": 600})
    for seed in range(20):
        world = make_world(random.Random(seed), noise=0.02)
        allowed = [stack.key for stack in (BASELINE, *STACKS) if world.truth[stack.key].kl <= 0.03]
        best = max(true_score(world, request, key) for key in allowed)
        assert true_score(world, request, winner_key(world, request, seed)) >= 0.97 * best, seed


def test_rounds_come_in_their_order_and_weights_are_made_once() -> None:
    rng = random.Random(3)
    progress = run(REQUEST.model_copy(update={"budget_min": 120}), make_world(rng), rng).progress
    kinds = [one.kind for one in progress.rounds]
    assert kinds == sorted(kinds, key=("screen", "halve", "race").index) and kinds.count("race") == 1
    assert len(progress.rounds[-1].keys) <= search.LEADERS


def test_a_budget_without_room_says_so_before_anything_begins() -> None:
    step = search.next_step(
        TuneRequest(model="m", budget_min=2, streams=(1, 2, 4, 8, 16, 32)),
        Progress(baseline=BASELINE, stacks=STACKS),
        STACKS,
    )
    assert isinstance(step, Finish) and step.reason == "The budget has no room for a first round."


def test_weights_that_cannot_be_made_are_why_nothing_was_measured() -> None:
    lost = {name: search.MadeWeights(seconds=0, failure="no quantizer") for name in WEIGHTS if name != "original"}
    stacks = tuple(stack for stack in STACKS if stack.weights in lost)
    step = search.next_step(REQUEST, Progress(baseline=BASELINE, stacks=stacks, weights=lost), stacks)
    assert step == Finish(reason="Nothing was measured, since weights could not be made: no quantizer")


def test_stacks_of_a_round_that_failed_as_a_whole_are_tried_again_alone() -> None:
    keys = tuple(stack.key for stack in STACKS[1:4])
    failed = Round(kind="screen", keys=keys, blocks=1, seconds=60, failure="no server answers")
    progress = Progress(baseline=BASELINE, stacks=STACKS, rounds=(failed,))
    there = {name: search.MadeWeights(seconds=1, artifact="a") for name in WEIGHTS}
    progress = progress.model_copy(update={"weights": there})
    step = search.next_step(TuneRequest(model="m", budget_min=60), progress, STACKS[1:])
    assert isinstance(step, Measure) and [stack.key for stack in step.stacks] == [keys[0]]
    alone = failed.model_copy(update={"keys": keys[:1]})
    progress = progress.model_copy(update={"rounds": (failed, alone)})
    (lost,) = progress.trials
    assert (lost.key, lost.failure) == (keys[0], "no server answers") and keys[0] in progress.tried


def test_what_needs_no_weights_is_measured_where_the_disk_is_full() -> None:
    request = TuneRequest(model="m", budget_min=60, disk_gb=0.001)
    progress = Progress(
        baseline=BASELINE, stacks=STACKS, weights={"q4_0": search.MadeWeights(seconds=1, artifact="a", bytes=10**8)}
    )
    step = search.next_step(request, progress, STACKS)
    assert isinstance(step, Measure) and {stack.weights for stack in step.stacks} <= {"original", "q4_0"}
    assert isinstance(search.next_step(TuneRequest(model="m", budget_min=60), progress, STACKS), Make)


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (SpaceChoice(engines=("llama.cpp",), weights=("q8_0",)), 3),
        (SpaceChoice(engines=("llama.cpp",), weights=("q8_0",), settings={"threads": ("1", "2")}), 9),
        (SpaceChoice(engines=("vllm",), weights=("original",), settings={"threads": ("1",)}), 1),
        (SpaceChoice(engines=("openvino",), weights=("q8_0",), settings={"kv_cache_dtype": ("q8_0",)}), 1),
    ],
)
def test_the_space_is_narrowed_and_extended_by_choice(choice: SpaceChoice, expected: int) -> None:
    stacks = list_stacks(choice, hardware="cpu", engines=ENGINES, weights=("original", "q8_0"), keeps_gguf=True)
    assert len(stacks) == expected and len({stack.key for stack in stacks}) == expected


@pytest.mark.parametrize("minutes", [8.0, 11.0, 14.0])
def test_a_budget_without_room_for_a_race_is_spent_on_more_of_the_space(minutes: float) -> None:
    """A search of 11 minutes once ended after one round of four stacks, half of its time unspent."""
    request = REQUEST.model_copy(update={"budget_min": minutes})
    for seed in range(10):
        progress = run(request, make_world(random.Random(seed)), random.Random(seed)).progress
        assert not [one for one in progress.rounds if one.kind == "race"]
        assert progress.spent_s > 0.7 * 60 * minutes, [(one.kind, one.seconds) for one in progress.rounds]
