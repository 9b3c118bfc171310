"""Chooses the target of `--target auto`.

The cheapest instance that fits and meets the goal, and why the others lost. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.limits.latency_limit import LatencyLimit
from backend.domain.planner.estimate import Estimate
from backend.domain.rules.plan import Verdict


class TargetGoal(Frozen):
    """Limits that a target must meet, and the preference among those that meet them.

    `cost`: the lowest price per hour; `throughput`: the lowest price per million output tokens; `latency`: the lowest
    time per output token. A limit counts as met only where the worst end of the range meets it.
    """

    wanted: Literal["cost", "throughput", "latency"] = "cost"
    max_ttft_ms: float | None = Field(None, gt=0)
    max_tpot_ms: float | None = Field(None, gt=0)
    min_output_tokens_per_s: float | None = Field(None, gt=0)
    min_context: int | None = Field(None, gt=0)

    @property
    def latency_limits(self) -> list[LatencyLimit]:
        """The limits that are set; each holds for the worst end of an estimate."""
        limits = {"ttft_ms": self.max_ttft_ms, "tpot_ms": self.max_tpot_ms}
        return [LatencyLimit(metric, most_ms) for metric, most_ms in limits.items() if most_ms is not None]


class TargetCandidate(Frozen):
    """One target, its verdict and, where it is valid, its estimate."""

    target: str
    verdict: Verdict
    estimate: Estimate | None


class RejectedTarget(Frozen):
    """A target that lost. `fits` is False where the recipe cannot run there at all."""

    target: str
    fits: bool
    why: str
    price_per_hour: float | None = None


class JobTarget(Frozen):
    """An instance for the optimize job: seconds and USD, (least, most)."""

    target: str
    seconds: tuple[float, float]
    cost: tuple[float, float]


class TargetChoice(Frozen):
    """The choice. `winner` is None where nothing meets the goal.

    Losers: those that fit first, in order of preference.
    """

    winner: Estimate | None
    why: str
    losers: tuple[RejectedTarget, ...]
    job: JobTarget | None = None
    """The instance on which the optimize job itself costs least; None where that is not known."""


class Deployment(Frozen):
    """Target on which the result is to be served, stored with the job.

    `goal` and `losers` are set if they chose the target.
    """

    target: str
    why: str
    tensor_parallel: int
    replicas: int = 1
    price_per_hour: float | None = None
    goal: TargetGoal | None = None
    job: JobTarget | None = None
    losers: tuple[RejectedTarget, ...] = ()


def rank_candidates(candidates: Iterable[TargetCandidate], goal: TargetGoal) -> TargetChoice:
    """Return the best of the candidates by the goal; ties go to the cheaper, then to the name."""
    # 1. Separate those that fit and meet the goal from those that do not.
    ranked, losers, all_candidates = [], [], list(candidates)
    for candidate in all_candidates:
        if candidate.estimate is None:
            message = candidate.verdict.reasons[0].message if candidate.verdict.reasons else "It cannot be estimated."
            losers.append(RejectedTarget(target=candidate.target, fits=False, why=message))
            continue
        miss = find_miss(candidate.estimate, goal)
        if miss:
            losers.append(_rejected(candidate.estimate, miss))
        else:
            ranked.append(candidate.estimate)
    # 2. Order both.
    ranked.sort(key=lambda estimate: (score(estimate, goal), estimate.price_of_all_per_hour or 0.0, estimate.target))
    beaten = [_rejected(estimate, _comparison(estimate, ranked[0], goal)) for estimate in ranked[1:]]
    losers.sort(
        key=lambda loser: (not loser.fits, loser.price_per_hour is None, loser.price_per_hour or 0.0, loser.target)
    )
    # 3. The best wins; without one, the goal must change.
    if not ranked:
        return TargetChoice(
            winner=None,
            why="No instance fits the model and meets the goal: lower it, or use fewer bits.",
            losers=(*losers,),
        )
    why = f"The lowest that fits and meets the goal: {score(ranked[0], goal):,.4g} {UNITS[goal.wanted]}."
    return TargetChoice(winner=ranked[0], why=why, losers=(*beaten, *losers), job=choose_job_target(all_candidates))


def choose_job_target(candidates: Iterable[TargetCandidate]) -> JobTarget | None:
    """Return the instance on which the optimize job costs least at worst.

    None where none can run it, or there is no job.
    """
    estimates = (candidate.estimate for candidate in candidates if candidate.estimate is not None)
    timed = ((candidate.target, candidate.job_seconds, candidate.job_cost) for candidate in estimates)
    places = [
        JobTarget(target=name, seconds=took, cost=cost) for name, took, cost in timed if took and cost and took[1] > 0
    ]
    return min(places, key=lambda place: (place.cost[1], place.target), default=None)


def choose_estimate(estimates: Iterable[Estimate], goal: TargetGoal) -> Estimate | None:
    """Return the estimate that meets the goal best, of several ways to use one target; None of none."""
    return min(
        estimates,
        key=lambda estimate: (
            find_miss(estimate, goal) is not None,
            score(estimate, goal),
            (estimate.tpot_ms or (0.0, 0.0))[1],
            estimate.tensor_parallel,
        ),
        default=None,
    )


def find_miss(estimate: Estimate, goal: TargetGoal) -> str | None:
    """Return the part of the goal that the estimate does not surely meet; None where it meets all."""
    if estimate.price_per_hour is None:
        return "No price is known for it, so it cannot be ranked."
    # 1. Latencies, at most their limits.
    for latency_limit in goal.latency_limits:
        estimated: tuple[float, float] | None = getattr(estimate, latency_limit.metric)
        highest = estimated[1] if estimated else None
        if not latency_limit.allows(highest):
            return _miss(LATENCY_NAMES[latency_limit.metric], highest, latency_limit.most_ms, "ms")
    # 2. Throughput and context, at least their limits.
    rates = estimate.output_tokens_per_s
    floors = (
        ("Throughput", rates[0] if rates else None, goal.min_output_tokens_per_s, "tokens/s"),
        ("Context", estimate.max_context, goal.min_context, "tokens"),
    )
    for name, value, least, unit in floors:
        if least is not None and (value is None or value < least):
            return _miss(name, value, least, unit)
    return None


LATENCY_NAMES = {"ttft_ms": "Time to first token", "tpot_ms": "Time per output token"}


def _miss(name: str, value: float | None, limit: float, unit: str) -> str:
    shown = "unknown" if value is None else f"{value:,.4g} {unit}"
    return f"{name} is {shown} at the worst end of the estimate, and the goal is {limit:,g} {unit}."


def score(estimate: Estimate, goal: TargetGoal) -> float:
    """Return the figure that decides, lower is better, at the worst end; infinity where it is not known."""
    if goal.wanted == "latency" and estimate.tpot_ms:
        return estimate.tpot_ms[1]
    if goal.wanted == "throughput" and estimate.price_per_million_output:
        return estimate.price_per_million_output[1]
    return estimate.price_of_all_per_hour or 0.0 if goal.wanted == "cost" else float("inf")


def _rejected(estimate: Estimate, why: str) -> RejectedTarget:
    return RejectedTarget(target=estimate.target, fits=True, why=why, price_per_hour=estimate.price_of_all_per_hour)


UNITS = {"cost": "USD per hour", "throughput": "USD per million output tokens", "latency": "ms per output token"}


def _comparison(estimate: Estimate, winner: Estimate, goal: TargetGoal) -> str:
    mine, best = score(estimate, goal), score(winner, goal)
    if mine == best:
        return f"As good as {winner.target} at {best:,.4g} {UNITS[goal.wanted]}, and not cheaper."
    return f"{mine:,.4g} against {best:,.4g} {UNITS[goal.wanted]}."
