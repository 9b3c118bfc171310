"""The stacks that the winner of a search is held against: the engine's defaults, what vLLM's auto_tune would pick, and
a user's own, all measured in the same rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Literal

from backend.domain.frozen import Frozen
from backend.domain.tuning import ranking
from backend.domain.tuning.ranking import Ranked
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.stacks import ORIGINAL, Stack
from backend.domain.tuning.trials import Trial

AUTO_TUNE = "auto_tune"
"""Written in place of a source."""
AUTO_TUNE_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "max_num_seqs": ("128", "256"),
    "max_num_batched_tokens": ("512", "1024", "2048", "4096"),
}
"""The lists of vLLM's benchmarks/auto_tune/auto_tune.sh (01277f9c): it measures every pair of them on the model as it
is, and picks the most throughput whose latency is within the limit."""
Outcome = Literal["win", "same", "too close", "loss", "not measured"]


class Rival(Frozen):
    """A stack that the winner is held against; `outcome` is the winner's."""

    title: str
    name: str | None
    outcome: Outcome
    words: str


def auto_tune_stacks() -> tuple[Stack, ...]:
    """Return the settings that auto_tune would measure."""
    combinations = product(*AUTO_TUNE_SETTINGS.values())
    return tuple(
        Stack(weights=ORIGINAL, engine="vllm", settings=dict(zip(AUTO_TUNE_SETTINGS, values, strict=True)))
        for values in combinations
    )


def pick_as_auto_tune(trials: Iterable[Trial], request: TuneRequest) -> str | None:
    """Return the key of the settings that auto_tune would pick: the most tokens/s at the highest load, of those within
    the latency limits there. None while they are not all measured, and where none is within the limits."""
    keys = {stack.key for stack in auto_tune_stacks()}
    own = [trial for trial in trials if trial.key in keys and trial.round == "screen"]
    if len(own) < len(keys):
        return None
    at_highest = request.model_copy(update={"streams": (max(request.streams),), "goal": "throughput", "max_kl": None})
    rates = {
        trial.key: rate
        for trial in own
        if (rate := ranking.score(trial, at_highest)) and not ranking.find_misses(trial, at_highest)
    }
    return max(rates, key=rates.__getitem__) if rates else None


def list_rivals(
    ranked: Sequence[Ranked], request: TuneRequest, baseline: str, picked: str | None, names: Mapping[str, str]
) -> list[Rival]:
    """Return the engine's defaults, auto_tune's pick and a user's own stacks, each with the winner's outcome.
    `picked`: the key of that pick; `names`: key -> name of a stack."""
    by_key = {one.trial.key: one for one in ranked}
    # 1. Who is held against the winner.
    keys: list[tuple[str, str | None]] = [("Engine's defaults", baseline)]
    for source in request.against:
        is_rule = source == AUTO_TUNE
        keys.append(("vLLM's auto_tune" if is_rule else "Your own", picked if is_rule else source))
    # 2. What came of it.
    return [_rival(title, by_key.get(key or ""), names.get(key or "", key)) for title, key in keys]


def _rival(title: str, one: Ranked | None, name: str | None) -> Rival:
    if one is None:
        reason = "not measured in the budget" if name is not None else "its settings were not all measured"
        return Rival(title=title, name=name, outcome="not measured", words=reason)
    outcomes: dict[str, Outcome] = {"winner": "loss", "same": "same", "too close": "too close"}
    words = "it is the best itself" if one.standing == "winner" else one.words
    return Rival(title=title, name=name, outcome=outcomes.get(one.standing, "win"), words=words)
