"""Chooses a precision for each group of linears by the losses measured at each.

Within an average, or down to a quality floor.

Pure. Knows neither how losses are measured nor how anything is quantized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.maths import knapsack
from backend.domain.maths.knapsack import KnapsackChoice
from backend.domain.recipe import precision
from backend.domain.recipe.precision import SIXTEEN, MeasuredGroup, Precision
from backend.domain.recipe.recipe import Limits

MOST_TRIES = 6
"""Times that a model is quantized and scored before a floor is given up, the first included."""
MARGIN = 1.1
"""Factor by which a raised allocation should lose less than the floor, since losses of groups add up only roughly."""

Allocation = list[Precision]
"""One a group."""


class AllocationTry(Frozen):
    """An allocation that was quantized and scored. `missed` names the limit it exceeds; None if it was accepted."""

    average_bits: float
    kl_mean: float
    perplexity_increase: float
    """Relative."""
    missed: str | None
    raised: dict[str, str] = Field(default_factory=dict)
    """Groups that this attempt gave another precision than the step's own, and which."""


def allocate(groups: Sequence[MeasuredGroup], candidates: Sequence[Precision], target_bits: float) -> Allocation:
    """Return the allocation with the least predicted loss at no more than `target_bits` per weight on average.

    Raises ValueError where the cheapest candidates take more.
    """
    budget = int(target_bits * sum(group.weights for group in groups))
    return [candidates[number] for number in knapsack.allocate(_choices(groups, candidates), budget)]


def predicted_loss(groups: Sequence[MeasuredGroup], chosen: Sequence[Precision]) -> float:
    """Return the nats per token if the losses of groups add up."""
    return sum(group.losses[precision.name] for group, precision in zip(groups, chosen, strict=True))


def raise_precisions(
    groups: Sequence[MeasuredGroup], candidates: Sequence[Precision], last: Sequence[Precision], excess: float
) -> Allocation | None:
    """Return the smallest allocation that should stay within a limit which `last` exceeded by the factor `excess`
    (above 1).

    The prediction is scaled by what `last` really lost. None where only 16 bits everywhere are left.
    """
    choices, most = _choices(groups, candidates), predicted_loss(groups, last) / (excess * MARGIN)
    budget = knapsack.least_budget(choices, most) if most > 0 else None
    if budget is None:
        return None
    chosen = [candidates[number] for number in knapsack.allocate(choices, budget)]
    return None if all(precision == SIXTEEN for precision in chosen) else chosen


def limit_excess(limits: Limits, quality: Mapping[str, Any]) -> float:
    """Return the factor by which the worst limit is exceeded; at most 1 where all hold."""
    ratios = [0.0]
    if limits.max_kl is not None:
        ratios.append(quality["kl_mean"] / limits.max_kl)
    if limits.max_perplexity_increase is not None:
        ratios.append(perplexity_increase(quality) / limits.max_perplexity_increase)
    return max(ratios)


def perplexity_increase(quality: Mapping[str, Any]) -> float:
    """Return the relative increase of the perplexity."""
    return float(quality["perplexity_after"] / quality["perplexity_before"] - 1)


def missed_limit(limits: Limits, quality: Mapping[str, Any]) -> str | None:
    """Return the limit that is exceeded, in words without a full stop; None where all hold."""
    if limits.max_kl is not None and quality["kl_mean"] > limits.max_kl:
        return f"mean KL divergence is {quality['kl_mean']:.4f}, above the recipe's max_kl {limits.max_kl}"
    rise, most = perplexity_increase(quality), limits.max_perplexity_increase
    if most is not None and rise > most:
        return f"perplexity rose by {rise:.2%}, above the recipe's max_perplexity_increase {most:.2%}"
    return None


def precision_record(
    groups: Sequence[MeasuredGroup],
    chosen: Sequence[Precision],
    own: Precision,
    target: float | None,
    attempts: Sequence[AllocationTry],
) -> dict[str, Any]:
    """Return what an artifact records of its precisions. `own` is what the method makes of a group by itself."""
    rows = [
        {
            "name": group.name,
            "linears": len(group.linears),
            "weights": group.weights,
            "precision": chosen_precision.name,
            "bits": chosen_precision.bits,
            "words": chosen_precision.words,
            "losses": group.losses,
        }
        for group, chosen_precision in zip(groups, chosen, strict=True)
    ]
    return {
        "target_bits": target,
        "own": own.name,
        "average_bits": precision.average_bits(groups, chosen),
        "predicted_kl": predicted_loss(groups, chosen),
        "groups": rows,
        "attempts": [attempt.model_dump() for attempt in attempts],
    }


def _choices(groups: Sequence[MeasuredGroup], candidates: Sequence[Precision]) -> list[list[KnapsackChoice]]:
    return [
        [KnapsackChoice(group.stored_bits(candidate), group.losses[candidate.name]) for candidate in candidates]
        for group in groups
    ]
