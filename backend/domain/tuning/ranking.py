"""Ranks the stacks of a search, and says of every loser the reason in one sentence. Pure.

A stack is allowed if it meets every limit at every load, and the quality floor. Among the allowed ones the best score
wins; where none is allowed, the nearest to the limits is named with what it misses, so that no search ends with
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Literal

from backend.domain.figures import figure, streams
from backend.domain.frozen import Frozen
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.trials import Trial

SAME_WITHIN = 0.03
"""Two stacks whose scores differ by less are the same."""
UNMEASURED = 1e9
"""Excess of a limit whose figure was not measured: wider than any miss."""
MEASURED_ONCE = ("kl", "kl_p99", "task_loss", "worst_task")
"""Figures of quality, which the first round of a stack alone measures."""
Standing = Literal["winner", "front", "same", "too close", "slower", "over limit", "failed", "nearest"]


class Miss(Frozen):
    """A limit that a trial breaks. `excess` is measured / allowed."""

    words: str
    excess: float


class Ranked(Frozen):
    """A stack in the ranking; `score` is larger for better ones, None where nothing was measured."""

    trial: Trial
    standing: Standing
    score: float | None
    words: str


def latest_trials(trials: Iterable[Trial]) -> list[Trial]:
    """Return the last trial of each stack that gave figures, with the quality that any of its trials measured."""
    by_key: dict[str, Trial] = {}
    for trial in trials:
        earlier = by_key.get(trial.key)
        if earlier is not None and trial.failure is not None and earlier.failure is None:
            continue
        if earlier is not None and trial.kl is None:
            trial = trial.model_copy(update={name: getattr(earlier, name) for name in MEASURED_ONCE})
        by_key[trial.key] = trial
    return list(by_key.values())


def score(trial: Trial, request: TuneRequest) -> float | None:
    """Return the geometric mean, over the loads, of tokens/s or of 1 / latency; None without all figures.

    At a fixed price per hour the price per token is the inverse of tokens/s, so the goals cost and throughput differ
    in the load alone: throughput counts the highest one.
    """
    loads = [max(request.streams)] if request.goal == "throughput" else request.streams
    levels = [trial.at(load) for load in loads]
    values = [None if level is None else _value(level.tokens_per_s, level.latency_ms, request) for level in levels]
    known = [value for value in values if value]
    return math.exp(fmean(map(math.log, known))) if len(known) == len(loads) else None


def _value(tokens_per_s: float, latency_ms: float | None, request: TuneRequest) -> float | None:
    if request.goal != "latency":
        return tokens_per_s
    return 1000 / latency_ms if latency_ms else None


def find_misses(trial: Trial, request: TuneRequest) -> list[Miss]:
    """Return the limits that the trial breaks, the widest miss first."""
    misses = []
    # 1. Quality.
    for name, value, most in (("KL", trial.kl, request.max_kl), ("KL p99", trial.kl_p99, request.max_kl_p99)):
        if most is not None and value is not None and value > most:
            misses.append(Miss(words=f"{name} {figure(value)} over your {most:g}", excess=value / most))
    if request.tasks and trial.task_loss is not None and trial.task_loss > request.max_task_loss:
        words = f"{trial.worst_task} {figure(trial.task_loss)} below the original, {request.max_task_loss:g} allowed"
        misses.append(Miss(words=words, excess=trial.task_loss / request.max_task_loss))
    most, ratio = request.max_length_change, trial.length_ratio
    if most is not None and ratio is not None and max(ratio, 1 / ratio) > 1 + most:
        words = f"answers {ratio:.2f}x as long as the original's, {most:.0%} allowed"
        misses.append(Miss(words=words, excess=max(ratio, 1 / ratio) / (1 + most)))
    # 2. Latencies at each load.
    percentile = request.limits.percentile
    for load in request.streams:
        level = trial.at(load)
        for limit in request.limits.latency_limits:
            value = None if level is None else getattr(level, limit.metric)
            name = limit.metric.removesuffix("_ms").upper()
            if value is None:
                misses.append(Miss(words=f"{name} at {streams(load)} was not measured", excess=UNMEASURED))
            elif value > limit.most_ms:
                words = f"{name} {percentile} {value:,.0f} ms at {streams(load)}, {limit.most_ms:,.0f} allowed"
                misses.append(Miss(words=words, excess=value / limit.most_ms))
    return sorted(misses, key=lambda miss: -miss.excess)


def rank(trials: Iterable[Trial], request: TuneRequest, *, baseline: str) -> list[Ranked]:
    """Return all stacks, the winner first. `baseline` is the key of the original, whose quality needs no measurement.

    A race counts more than what came before it: a stack that raced is ranked by its race.
    """
    # 1. Those that are allowed, and what the others miss.
    latest = latest_trials(trials)
    misses = {trial.key: _misses_of(trial, request, baseline) for trial in latest}
    scores = {trial.key: score(trial, request) for trial in latest}
    measured = [trial for trial in latest if scores[trial.key] is not None]
    allowed = [trial for trial in measured if not misses[trial.key]]
    raced = [trial for trial in allowed if trial.round == "race"]
    # 2. The winner, or the nearest.
    if not allowed:
        nearest = min(measured, key=lambda trial: misses[trial.key][0].excess, default=None)
        return [_lost(trial, scores, misses, request, nearest=nearest) for trial in _by_score(latest, scores)]
    winner = max(raced or allowed, key=lambda trial: scores[trial.key] or 0.0)
    best = scores[winner.key] or 0.0
    front = _front(allowed, request) if request.goal == "front" else set()
    others = [trial for trial in _by_score(latest, scores) if trial.key != winner.key]
    head = Ranked(trial=winner, standing="winner", score=best, words=_win_words(winner, request))
    return [head, *(_place(trial, best, winner, scores, misses, front, request) for trial in others)]


def _misses_of(trial: Trial, request: TuneRequest, baseline: str) -> list[Miss]:
    misses = find_misses(trial, request)
    if trial.key == baseline:
        return misses
    if request.max_kl is not None and trial.kl is None:
        misses.append(Miss(words="its quality was not measured", excess=UNMEASURED))
    if request.tasks and trial.task_loss is None:
        misses.append(Miss(words="its tasks were not scored", excess=UNMEASURED))
    if request.max_length_change is not None and trial.length_ratio is None:
        misses.append(Miss(words="the length of its answers was not measured", excess=UNMEASURED))
    return misses


def _by_score(trials: Sequence[Trial], scores: dict[str, float | None]) -> list[Trial]:
    return sorted(trials, key=lambda trial: -(scores[trial.key] or 0.0))


def _front(trials: Sequence[Trial], request: TuneRequest) -> set[str]:
    """Return the keys of those that no other beats in both latency at the lowest load and tokens/s at the highest."""
    points = {}
    for trial in trials:
        low, high = trial.at(min(request.streams)), trial.at(max(request.streams))
        if low is not None and high is not None and low.latency_ms is not None:
            points[trial.key] = (-low.latency_ms, high.tokens_per_s)
    return {
        key
        for key, point in points.items()
        if not any(other != point and other[0] >= point[0] and other[1] >= point[1] for other in points.values())
    }


def _win_words(trial: Trial, request: TuneRequest) -> str:
    within = "within your limits" if request.limits.latency_limits or request.max_kl is not None else "of all measured"
    return f"{'the best trade-off' if request.goal == 'front' else 'the best'} {within}"


def _place(
    trial: Trial,
    best: float,
    winner: Trial,
    scores: dict[str, float | None],
    misses: dict[str, list[Miss]],
    front: set[str],
    request: TuneRequest,
) -> Ranked:
    own = scores[trial.key]
    if own is None or misses[trial.key]:
        return _lost(trial, scores, misses, request)
    raced = f" (in the race {trial.race_words})" if trial.race_words else ""
    ratio = own / best
    measure = "1 / latency" if request.goal == "latency" else "tokens/s"
    if ratio >= 1 - SAME_WITHIN and trial.round == winner.round == "race" and (trial.is_open or winner.is_open):
        words = f"too close to tell from the winner: {ratio:.2f}x its {measure}{raced}"
        return Ranked(trial=trial, standing="too close", score=own, words=words)
    if ratio >= 1 - SAME_WITHIN and trial.round == winner.round:
        words = f"the same as the winner within {SAME_WITHIN:.0%}: {ratio:.2f}x its {measure}{raced}"
        return Ranked(trial=trial, standing="same", score=own, words=words)
    words = f"{ratio:.2f}x the winner's {measure}{raced}"
    if trial.round != winner.round:
        words += f", in an earlier round of {trial.blocks} {'block' if trial.blocks == 1 else 'blocks'}"
    if trial.key in front:
        return Ranked(trial=trial, standing="front", score=own, words=f"on the front: {words}")
    return Ranked(trial=trial, standing="slower", score=own, words=words)


def _lost(
    trial: Trial,
    scores: dict[str, float | None],
    misses: dict[str, list[Miss]],
    request: TuneRequest,
    nearest: Trial | None = None,
) -> Ranked:
    own = scores[trial.key]
    if own is None:
        words = trial.failure or f"not measured at {' and '.join(map(streams, request.streams))}"
        return Ranked(trial=trial, standing="failed", score=None, words=words)
    words = "; ".join(miss.words for miss in misses[trial.key][:2])
    if nearest is not None and nearest.key == trial.key:
        return Ranked(trial=trial, standing="nearest", score=own, words=f"nearest to your limits: {words}")
    return Ranked(trial=trial, standing="over limit", score=own, words=words)
