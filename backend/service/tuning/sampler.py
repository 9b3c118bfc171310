"""The order in which untried stacks are tried: the likeliest first, then as Optuna's samplers choose after each round.

The tree-structured Parzen estimator (Bergstra et al. 2011) for one goal, NSGA-II (Deb et al. 2002) for a front of two.
Both see what was measured so far, and propose combinations of weights, engine and settings.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

from backend.domain.tuning import ranking
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.search import Progress
from backend.domain.tuning.stacks import CACHE, Stack
from backend.domain.tuning.trials import Trial

FIRST = 6
"""Measured stacks before a sampler has a say: with fewer it would choose at random."""
PROPOSALS = 100
"""Times that a sampler is asked, since it may propose what was tried or what no engine serves."""
PENALTY = 2.0
"""Power of the widest miss by which a score is divided: what breaks a limit is worth less, the more the wider."""


def order_stacks(request: TuneRequest, progress: Progress) -> list[Stack]:
    """Return the untried stacks, the next to try first."""
    untried = [stack for stack in progress.stacks if stack.key not in progress.tried]
    trials = [trial for trial in ranking.latest_trials(progress.trials) if trial.failure is None]
    if len(trials) < FIRST or len(untried) < 2:
        return untried
    proposed = _propose(request, progress, trials, untried)
    chosen = {stack.key for stack in proposed}
    return [*proposed, *(stack for stack in untried if stack.key not in chosen)]


def _propose(
    request: TuneRequest, progress: Progress, trials: Sequence[Trial], untried: Sequence[Stack]
) -> list[Stack]:
    import optuna

    # 1. The study, with what was measured.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    front = request.goal == "front"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of `multivariate`, since 2020
        tree = optuna.samplers.TPESampler(seed=request.seed, n_startup_trials=0, multivariate=True)
    sampler: Any = optuna.samplers.NSGAIISampler(seed=request.seed, population_size=8) if front else tree
    study = optuna.create_study(directions=["maximize"] * (2 if front else 1), sampler=sampler)
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.CategoricalDistribution(values)
        for name, values in _values([progress.baseline, *progress.stacks]).items()
    }
    by_key = {stack.key: stack for stack in [progress.baseline, *progress.stacks]}
    for trial in trials:
        values = _objectives(trial, request)
        if trial.key in by_key and values is not None:
            study.add_trial(
                optuna.trial.create_trial(
                    params=_parameters(by_key[trial.key], distributions), distributions=distributions, values=values
                )
            )
    # 2. Its proposals that can be tried, what it proposes most often first.
    open_stacks = {tuple(_parameters(stack, distributions).values()): stack for stack in untried}
    proposals = (study.ask(distributions).params for _ in range(PROPOSALS))
    proposed = Counter(tuple(params[name] for name in distributions) for params in proposals)
    return [open_stacks[values] for values, _ in proposed.most_common() if values in open_stacks]


def _values(stacks: Sequence[Stack]) -> dict[str, list[str]]:
    """Return the values of each dimension of the space."""
    settings = sorted({name for stack in stacks for name in stack.settings} | {CACHE})
    values = {"weights": [stack.weights for stack in stacks], "engine": [str(stack.engine) for stack in stacks]}
    values |= {name: [stack.settings.get(name, "") for stack in stacks] for name in settings}
    return {name: list(dict.fromkeys(column)) for name, column in values.items()}


def _parameters(stack: Stack, names: Sequence[str] | dict[str, Any]) -> dict[str, str]:
    own = {"weights": stack.weights, "engine": str(stack.engine), **stack.settings}
    return {name: own.get(name, "") for name in names}


def _objectives(trial: Trial, request: TuneRequest) -> list[float] | None:
    """Return what the sampler is to maximize; None without figures."""
    misses = ranking.find_misses(trial, request)
    worth = min(misses[0].excess, 100.0) ** -PENALTY if misses else 1.0
    if request.goal != "front":
        score = ranking.score(trial, request)
        return None if score is None else [score * worth]
    low, high = trial.at(min(request.streams)), trial.at(max(request.streams))
    if low is None or high is None or not low.latency_ms:
        return None
    return [1000 / low.latency_ms * worth, high.tokens_per_s * worth]
