"""A search in a simulated world: every stack has a true speed and quality, and every step takes a known time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from backend.domain.tuning import ranking, search
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.search import Finish, MadeWeights, Make, Measure, Progress
from backend.domain.tuning.stacks import WEIGHTS, SpaceChoice, Stack, list_stacks
from backend.domain.tuning.trials import Round, Trial, TrialLevel

ENGINES = ("vllm", "llama.cpp", "openvino")
SPACE = list_stacks(SpaceChoice(), hardware="cpu", engines=ENGINES, weights=tuple(WEIGHTS), keeps_gguf=True)
BASELINE = next(stack for stack in SPACE if stack.weights == "original" and stack.engine == "vllm")
STACKS = tuple(stack for stack in SPACE if stack != BASELINE)


class Truth(NamedTuple):
    """Tokens/s at one stream (at n streams n ** `scaling` times that) and KL divergence of a stack."""

    speed: float
    scaling: float
    kl: float


class World(NamedTuple):
    """`slowness`: what steps take, as a factor of the first guesses; `noise`: standard deviation of ln(tokens/s) of one
    block; `broken`: stacks whose server dies, and weights that cannot be made; `makes`: seconds of making weights where
    they are known, whatever `slowness`."""

    truth: dict[str, Truth]
    slowness: float = 1.0
    noise: float = 0.05
    broken: frozenset[str] = frozenset()
    makes: Mapping[str, float] = {}

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The space: what has a truth, but the baseline."""
        return tuple(stack for stack in STACKS if stack.key in self.truth)


def make_world(rng: random.Random, *, slowness: float = 1.0, noise: float = 0.05, broken: int = 0) -> World:
    """Make a world of factors, as real ones are: engine and weights change speed by factors, how both go together by
    10 %, and types of cache by 5 %."""
    engines = {engine: (rng.uniform(0.6, 1.6), rng.uniform(0.2, 0.9)) for engine in ENGINES}
    weights = {name: (rng.uniform(0.7, 1.8), rng.choice((0.004, 0.02, 0.12))) for name in WEIGHTS}
    truth = {}
    for stack in STACKS:
        (by_engine, scaling), (by_weights, kl) = engines[stack.engine], weights[stack.weights]
        by_cache = rng.uniform(0.95, 1.05) if stack.settings else 1.0
        truth[stack.key] = Truth(40 * by_engine * by_weights * rng.uniform(0.9, 1.1) * by_cache, scaling, kl)
    truth[BASELINE.key] = Truth(40.0 * engines["vllm"][0], engines["vllm"][1], 0.0)
    names = [stack.key for stack in STACKS] + [name for name in WEIGHTS if name != "original"]
    return World(truth, slowness, noise, frozenset(rng.sample(names, broken)))


def level(truth: Truth, streams: int, noise: float, rng: random.Random, blocks: int) -> TrialLevel:
    rate = truth.speed * streams**truth.scaling * 2.718281828 ** rng.gauss(0, noise / blocks**0.5)
    each = 1000 * 32 * streams / rate
    return TrialLevel(
        streams=streams, tokens_per_s=rate, ttft_ms=each / 8, tpot_ms=each / 36, latency_ms=each, price=28 / rate
    )


Order = Callable[[TuneRequest, Progress], Sequence[Stack]]


def likeliest_first(request: TuneRequest, progress: Progress) -> Sequence[Stack]:
    return [stack for stack in progress.stacks if stack.key not in progress.tried]


class Ended(NamedTuple):
    """The end of a search. `overran`: steps that were cut off since the budget was over."""

    progress: Progress
    finish: Finish
    overran: int


def run(
    request: TuneRequest,
    world: World,
    rng: random.Random,
    order: Order = likeliest_first,
    rivals: tuple[Stack, ...] = (),
) -> Ended:
    """Run a search to its end. A step that would pass the end of the budget is cut off there and gives nothing, as a
    cancelled job does."""
    progress = Progress(baseline=BASELINE, stacks=world.stacks, rivals=rivals)
    overran, budget = 0, 60 * request.budget_min
    for _ in range(200):
        step = search.next_step(request, progress, order(request, progress))
        if isinstance(step, Finish):
            return Ended(progress, step, overran)
        seconds = true_seconds(request, progress, world, step) * rng.uniform(0.85, 1.1)
        cut_off = progress.spent_s + seconds > budget
        seconds, overran = (budget - progress.spent_s, overran + 1) if cut_off else (seconds, overran)
        if isinstance(step, Make):
            failed = cut_off or step.weights in world.broken
            one = (
                MadeWeights(seconds=seconds, failure="it broke")
                if failed
                else MadeWeights(seconds=seconds, artifact="a-1", bytes=10**8)
            )
            progress = progress.model_copy(update={"weights": {**progress.weights, step.weights: one}})
            continue
        keys = tuple(stack.key for stack in step.stacks)
        trials = () if cut_off else tuple(_measure(request, world, rng, step, key) for key in (BASELINE.key, *keys))
        failure = "the budget ended" if cut_off else None
        done = Round(kind=step.kind, keys=keys, blocks=step.blocks, seconds=seconds, trials=trials, failure=failure)
        progress = progress.model_copy(update={"rounds": (*progress.rounds, done)})
    raise AssertionError("the search does not end")


def true_seconds(request: TuneRequest, progress: Progress, world: World, step: Make | Measure) -> float:
    """Return what a step takes in the world, but for chance."""
    if isinstance(step, Make):
        return world.makes.get(step.weights, world.slowness * search.MAKE_SECONDS)
    return world.slowness * search.seconds_of(request, progress.model_copy(update={"rounds": ()}), step)


def _measure(request: TuneRequest, world: World, rng: random.Random, step: Measure, key: str) -> Trial:
    truth = world.truth[key]
    broken = key in world.broken
    levels = tuple(level(truth, streams, world.noise, rng, step.blocks) for streams in request.streams)
    return Trial(
        key=key,
        name=key,
        evaluation="e-1",
        round=step.kind,
        blocks=step.blocks,
        levels=() if broken else levels,
        kl=truth.kl if step.kind == "screen" else None,
        failure="its server ended" if broken else None,
    )


def true_score(world: World, request: TuneRequest, key: str) -> float:
    """Return the score of a stack without noise."""
    levels = tuple(level(world.truth[key], streams, 0.0, random.Random(0), 1) for streams in request.streams)
    trial = Trial(key=key, name=key, evaluation="e-1", round="race", blocks=1, levels=levels)
    return ranking.score(trial, request) or 0.0
