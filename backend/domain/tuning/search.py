"""The next step of a search: make weights, measure a few stacks, halve, race, or end. Pure.

1. *Screen*: a few stacks at a time, beside the original, with one block each; which ones, an order says that callers
   give (a sampler's over what was measured so far). What vLLM's auto_tune would try comes after the first round.
2. *Halve*: the better third of what is allowed is measured again with more blocks (successive halving, Jamieson and
   Talwalkar 2016).
3. *Race*: the leaders are measured in turns until one is better or the blocks end; a user's own stacks race along.
   Where there is no room for a race, more of the space is screened, then the leaders are measured again.

No step begins that is not expected to end within the budget, and what a race takes is kept back while stacks are
screened. Expected times start from the engines' usual ones and follow what steps took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, product
from statistics import fmean

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.recipe.serving_engines import EngineName
from backend.domain.tuning import ranking
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.rivals import AUTO_TUNE, pick_as_auto_tune
from backend.domain.tuning.stacks import ORIGINAL, WEIGHTS, Stack
from backend.domain.tuning.trials import Round, RoundKind, Trial

BATCH = 4
"""Stacks of a screening round, beside the original: as many servers fit into memory, and the original's start is
shared."""
SCREEN_BLOCKS, HALVE_BLOCKS, RACE_BLOCKS = 1, 3, 8
LEADERS, MEASURED_AGAIN = 3, 4
"""Stacks that race at the most, and that are measured again when the field is halved."""
SCREEN_SHARE = 0.75
"""The part of the budget that making and screening may take."""
START_SECONDS: Mapping[EngineName, float] = {"vllm": 75.0, "llama.cpp": 8.0, "openvino": 12.0}
LEVEL_SECONDS, MAKE_SECONDS, FIXED_SECONDS = 10.0, 90.0, 15.0
"""First guesses: of a block of one stack at one load, of making weights, and of a job besides."""
RACE_SHARE = 0.3
"""The most of the budget that is kept back for a race. Where that is not enough, the leaders are measured again with
HALVE_BLOCKS instead."""
MARGIN = 1.15
"""The factor by which a step may take longer than expected."""
SLOWEST, FASTEST = 6.0, 0.25
"""Bounds of the factor by which the guesses are corrected."""


class Make(Frozen):
    """Make the weights, once for all stacks that have them."""

    weights: str


class Measure(Frozen):
    """Measure stacks beside the original in one evaluation of at most so many blocks."""

    kind: RoundKind
    stacks: tuple[Stack, ...]
    blocks: int


class Finish(Frozen):
    """End the search."""

    reason: str


Step = Make | Measure | Finish


class MadeWeights(Frozen):
    """Weights that were made, or could not be (`failure`)."""

    seconds: float
    artifact: str | None = None
    failure: str | None = None
    bytes: int = 0


class Progress(Frozen):
    """Everything that decides the next step, besides the request."""

    baseline: Stack
    """The original, which every round measures too."""
    stacks: tuple[Stack, ...]
    """The space, the likeliest first."""
    rivals: tuple[Stack, ...] = ()
    """Further stacks that are measured whatever the order says: those of auto_tune."""
    weights: dict[str, MadeWeights] = Field(default_factory=dict)
    rounds: tuple[Round, ...] = ()

    @property
    def spent_s(self) -> float:
        """Seconds of all steps. Waiting in the queue costs nothing."""
        return sum(one.seconds for one in self.weights.values()) + sum(one.seconds for one in self.rounds)

    @property
    def spent_bytes(self) -> int:
        return sum(one.bytes for one in self.weights.values())

    @property
    def known(self) -> dict[str, Stack]:
        """Return all stacks but the original, by key."""
        return {stack.key: stack for stack in (*self.stacks, *self.rivals)}

    @property
    def trials(self) -> list[Trial]:
        """Return all trials; a round of one stack that failed as a whole is the failure of that stack."""
        measured = chain.from_iterable(one.trials for one in self.rounds)
        return [
            *measured,
            *(_failed_trial(one) for one in self.rounds if one.failure is not None and not one.is_shared),
        ]

    @property
    def tried(self) -> set[str]:
        """Keys of the stacks that were measured or failed alone, and of a round under way."""
        return set(chain.from_iterable(one.keys for one in self.rounds if one.failure is None or not one.is_shared))

    @property
    def suspects(self) -> set[str]:
        """Keys of the stacks of a round that failed as a whole, one of which broke it: each is tried again alone."""
        failed = chain.from_iterable(one.keys for one in self.rounds if one.failure is not None and one.is_shared)
        return set(failed) - self.tried


def next_step(request: TuneRequest, progress: Progress, order: Sequence[Stack]) -> Step:
    """Return the next step. `order`: untried stacks, the next to try first."""
    # 1. A race is the last step.
    if any(one.kind == "race" for one in progress.rounds):
        return Finish(reason="The leaders have raced.")
    # 2. More of the space, while there is budget for it and for a race.
    rivals = [stack for stack in progress.rivals if stack.key not in progress.tried]
    batch = _next_batch(request, progress, rivals) if rivals and progress.trials else ()
    batch = batch or _next_batch(request, progress, order)
    if batch:
        return _screen(progress, batch)
    # 3. The better part again, then the race of the leaders.
    leaders = _leaders(request, progress)
    halved = any(one.kind == "halve" for one in progress.rounds)
    again = Measure(kind="halve", stacks=tuple(leaders[:MEASURED_AGAIN]), blocks=HALVE_BLOCKS)
    both = seconds_of(request, progress, again) + _race_seconds(request, progress)
    if not halved and len(leaders) > LEADERS and _fits(request, progress, both):
        return again
    races = (len(leaders) > 1 or bool(request.against)) and bool(leaders)
    race = _race(request, progress, leaders) if races else None
    if race is not None:
        return race
    # 4. Where there is no room for a race: more of the space with what is left, then the leaders again.
    batch = _next_batch(request, progress, order, reserve=False)
    if batch:
        return _screen(progress, batch)
    if races:
        sizes = () if halved else product((leaders[:MEASURED_AGAIN], leaders[:2]), range(HALVE_BLOCKS, 0, -1))
        for stacks, blocks in sizes:
            again = Measure(kind="halve", stacks=tuple(stacks), blocks=blocks)
            if _fits(request, progress, seconds_of(request, progress, again)):
                return again
        return Finish(reason="The budget has no room for a race of the leaders.")
    return Finish(reason=_end_reason(progress, order))


def _screen(progress: Progress, batch: tuple[Stack, ...]) -> Step:
    """Return the screening of the batch, or before it the making of weights that are not there."""
    missing = next((stack.weights for stack in batch if not _is_there(stack, progress)), None)
    return Measure(kind="screen", stacks=batch, blocks=SCREEN_BLOCKS) if missing is None else Make(weights=missing)


def _race(request: TuneRequest, progress: Progress, leaders: Sequence[Stack]) -> Measure | None:
    """Return the race of the leaders and the stack that auto_tune would pick; None where it has no room."""
    picked = progress.known.get(pick_as_auto_tune(progress.trials, request) or "") if progress.rivals else None
    rival = [picked] if picked is not None else []
    for stacks, blocks in ((leaders[:LEADERS], RACE_BLOCKS), (leaders[:2], RACE_BLOCKS - 2)):
        others = (stack for stack in rival if stack not in stacks)
        race = Measure(kind="race", stacks=(*stacks, *others), blocks=blocks)
        if _fits(request, progress, seconds_of(request, progress, race)):
            return race
    return None


def _end_reason(progress: Progress, order: Sequence[Stack]) -> str:
    lost = next((one.failure for one in progress.weights.values() if one.failure is not None), None)
    if not progress.rounds and lost is not None:
        return f"Nothing was measured, since weights could not be made: {lost}"
    if not progress.rounds:
        return "The budget has no room for a first round."
    if not progress.trials:
        return "The budget ended before anything was measured: give more minutes."
    return "The budget ended the search." if order else "Every stack was tried, and no second one is near the best."


def seconds_of(request: TuneRequest, progress: Progress, step: Measure) -> float:
    """Return the expected seconds of a round: starts, two at a time, and blocks, corrected by what rounds took."""
    return _guess(request, progress, step.stacks, step.blocks, step.kind) * _correction(request, progress)


def make_seconds(progress: Progress) -> float:
    """Return the expected seconds of making weights."""
    known = [one.seconds for one in progress.weights.values() if one.failure is None]
    return fmean(known) if known else MAKE_SECONDS


def _guess(request: TuneRequest, progress: Progress, stacks: Sequence[Stack], blocks: int, kind: RoundKind) -> float:
    """Return the seconds of a round by the first guesses."""
    own = [source for source in request.against if source != AUTO_TUNE]
    servers = [progress.baseline, *stacks, *([progress.baseline] * len(own) if kind == "race" else [])]
    starts = sum(START_SECONDS[stack.engine] for stack in servers) / 2
    return FIXED_SECONDS + starts + LEVEL_SECONDS * len(request.streams) * blocks * len(servers)


def _correction(request: TuneRequest, progress: Progress) -> float:
    """Return how much longer the rounds so far took than was guessed."""
    ratios = []
    for one in progress.rounds:
        stacks = [progress.known[key] for key in one.keys if key in progress.known]
        if one.failure is None and one.seconds:
            ratios.append(one.seconds / _guess(request, progress, stacks, one.blocks, one.kind))
    return min(SLOWEST, max(FASTEST, max(ratios))) if ratios else 1.0


def _fits(request: TuneRequest, progress: Progress, seconds: float, share: float = 1.0) -> bool:
    return progress.spent_s + MARGIN * seconds <= 60 * request.budget_min * share


def _race_seconds(request: TuneRequest, progress: Progress) -> float:
    """Return what a race of two of the likely leaders takes."""
    leaders = _leaders(request, progress)[:2] or list(progress.stacks[:2])
    return seconds_of(request, progress, Measure(kind="race", stacks=tuple(leaders), blocks=RACE_BLOCKS - 2))


def _failed_trial(one: Round) -> Trial:
    """Return the trial of the only stack of a round that failed."""
    return Trial(
        key=one.keys[0], name=one.keys[0], evaluation="", round=one.kind, blocks=one.blocks, failure=one.failure
    )


def _next_batch(
    request: TuneRequest, progress: Progress, order: Sequence[Stack], *, reserve: bool = True
) -> tuple[Stack, ...]:
    """Return the stacks of the next screening round, in their order, each that still fits: where there is no time or
    disk for more weights, those whose weights are there already. `reserve`: leave time for a race."""
    full = progress.spent_bytes >= request.disk_gb * 1e9
    batch: list[Stack] = []
    for stack in order:
        is_open = stack.key not in progress.tried and not _has_failed(stack, progress)
        if stack.key in progress.suspects:
            if is_open and not batch and _screens(request, progress, (stack,), reserve=reserve):
                return (stack,)
            continue
        if (
            is_open
            and (not full or _is_there(stack, progress))
            and _screens(request, progress, (*batch, stack), reserve=reserve)
        ):
            batch.append(stack)
        if len(batch) == BATCH:
            break
    return tuple(batch)


def _screens(request: TuneRequest, progress: Progress, batch: tuple[Stack, ...], *, reserve: bool) -> bool:
    """Tell whether making and screening the batch fits, and with `reserve` leaves enough for a race. Later rounds are
    then held to their share of the budget; the first may take all of it."""
    makes = len({stack.weights for stack in batch if not _is_there(stack, progress)})
    measuring = seconds_of(request, progress, Measure(kind="screen", stacks=batch, blocks=SCREEN_BLOCKS))
    seconds = makes * make_seconds(progress) + measuring
    if not reserve or not any(one.trials for one in progress.rounds):
        return _fits(request, progress, seconds)
    kept_back = min(_race_seconds(request, progress), RACE_SHARE * 60 * request.budget_min)
    return _fits(request, progress, seconds, SCREEN_SHARE) and _fits(request, progress, seconds + kept_back)


def _is_there(stack: Stack, progress: Progress) -> bool:
    own = progress.weights.get(stack.weights)
    return stack.weights == ORIGINAL or (own is not None and own.artifact is not None)


def _has_failed(stack: Stack, progress: Progress) -> bool:
    own = progress.weights.get(stack.weights)
    return own is not None and own.artifact is None


def _leaders(request: TuneRequest, progress: Progress) -> list[Stack]:
    """Return the stacks that may still win, the best first: those that meet limits and floor; where none does, the
    nearest ones. The original is measured in every round, so it races without being one of them."""
    ranked = ranking.rank(progress.trials, request, baseline=progress.baseline.key)
    allowed = [one for one in ranked if one.standing in {"winner", "front", "same", "too close", "slower"}]
    if not allowed:
        allowed = [one for one in ranked if one.standing == "nearest"]
    keys = [one.trial.key for one in allowed if one.trial.key != progress.baseline.key]
    return [progress.known[key] for key in keys if key in progress.known]


def untried_words(request: TuneRequest, progress: Progress, *, may_follow: bool = False) -> dict[str, str]:
    """Return, for each stack that was never measured, the reason in one sentence. `may_follow`: the search may still
    try it."""
    words = {}
    for stack in progress.known.values():
        own = progress.weights.get(stack.weights)
        if stack.key in progress.tried:
            continue
        if own is not None and own.failure is not None:
            words[stack.key] = f"its weights could not be made: {own.failure}"
        elif may_follow:
            words[stack.key] = "not tried yet"
        else:
            words[stack.key] = f"not tried: the budget of {request.budget_min:g} minutes was spent on likelier ones"
    return words


def describe_weights(weights: str) -> str:
    """Return the title of weights, for jobs and screens."""
    return WEIGHTS[weights].title
