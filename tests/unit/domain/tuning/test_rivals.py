"""The stacks that a winner is held against: auto_tune's pick, the engine's defaults, and a user's own."""

from __future__ import annotations

import random

from backend.domain.limits.slo import Slo
from backend.domain.tuning import ranking, search
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.rivals import AUTO_TUNE, auto_tune_stacks, list_rivals, pick_as_auto_tune
from backend.domain.tuning.search import Measure, Progress
from backend.domain.tuning.trials import Trial
from tests.helpers.simulated_search import BASELINE, STACKS, make_world, run
from tests.helpers.tuning_trials import trial

KEYS = [stack.key for stack in auto_tune_stacks()]
REQUEST = TuneRequest(model="m", streams=(1, 8), limits=Slo(ttft_ms=300), against=(AUTO_TUNE, "mine@max_num_seqs=4"))


def measured() -> list[Trial]:
    """Return a trial of each pair of settings, the later ones faster."""
    return [trial(key, 40.0 + number, ttft_ms=200.0) for number, key in enumerate(KEYS)]


def test_the_pick_is_the_fastest_within_the_limits_once_all_pairs_are_measured() -> None:
    trials = measured()
    assert len(KEYS) == 8 and pick_as_auto_tune(trials[1:], REQUEST) is None
    assert pick_as_auto_tune(trials, REQUEST) == KEYS[-1]
    late = [*trials[:-1], trial(KEYS[-1], 90.0, ttft_ms=400.0)]
    assert pick_as_auto_tune(late, REQUEST) == KEYS[-2]
    # What a race measured changes no pick.
    raced = trial(KEYS[0], 900.0, round="race", kl=None)
    assert pick_as_auto_tune([*trials, raced], REQUEST) == KEYS[-1]


def test_each_rival_has_the_winners_outcome() -> None:
    ranked = ranking.rank(
        [trial("original", 30.0, kl=None), trial("best", 60.0), *measured()], REQUEST, baseline="original"
    )
    rows = {one.title: one for one in list_rivals(ranked, REQUEST, "original", KEYS[-1], {KEYS[-1]: "settings"})}
    assert rows["Engine's defaults"].outcome == "win" and rows["vLLM's auto_tune"].name == "settings"
    assert rows["vLLM's auto_tune"].words == "0.78x the winner's tokens/s"
    assert (rows["Your own"].outcome, rows["Your own"].words) == ("not measured", "not measured in the budget")
    (defaults,) = list_rivals(
        ranking.rank([trial("original", 30.0, kl=None)], REQUEST, baseline="original"),
        TuneRequest(model="m"),
        "original",
        None,
        {},
    )
    assert (defaults.outcome, defaults.words) == ("loss", "it is the best itself")


def test_a_search_measures_all_pairs_and_races_the_pick() -> None:
    rng = random.Random(1)
    world = make_world(rng)
    request = TuneRequest(model="m", budget_min=120, against=(AUTO_TUNE,))
    truth = {key: world.truth[BASELINE.key]._replace(speed=30.0 + number) for number, key in enumerate(KEYS)}
    world = world._replace(truth=world.truth | truth)
    progress = run(request, world, rng, rivals=auto_tune_stacks()).progress
    picked = pick_as_auto_tune(progress.trials, request)
    assert set(KEYS) <= progress.tried and picked is not None
    assert progress.rounds[-1].kind == "race" and picked in progress.rounds[-1].keys


def test_the_first_round_is_of_the_space() -> None:
    progress = Progress(baseline=BASELINE, stacks=STACKS, rivals=auto_tune_stacks())
    own = {name: search.MadeWeights(seconds=1, artifact="a") for name in ("q8_0", "smoothquant+ngram_adaptive")}
    step = search.next_step(TuneRequest(model="m"), progress.model_copy(update={"weights": own}), STACKS[:2])
    assert isinstance(step, Measure) and not set(KEYS) & {stack.key for stack in step.stacks}
