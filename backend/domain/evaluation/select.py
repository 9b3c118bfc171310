"""Which of many variants a chart begins with: more lines than a person can tell apart say nothing. Pure."""

from __future__ import annotations

from collections.abc import Collection

from backend.domain.evaluation.document import Evaluation
from backend.present.charts.tradeoffs import pareto_points

MOST = 8
"""Lines on a chart that can still be told apart."""
MANY = 12
"""Up to so many variants, all are drawn."""


def foremost(evaluation: Evaluation, most: int = MOST) -> list[str]:
    """The baseline, then those with the most levels on the Pareto front, then those with the highest throughput; in the
    evaluation's order."""
    names = [result.name for result in evaluation.variants]
    if len(names) <= MANY:
        return names
    front, highest = [0] * len(names), [0.0] * len(names)
    for point in pareto_points(evaluation):
        front[point.variant] += point.on_front
        highest[point.variant] = max(highest[point.variant], point.total)
    ranked = sorted(range(1, len(names)), key=lambda index: (-front[index], -highest[index]))
    return [names[index] for index in sorted([0, *ranked[: most - 1]])]


def only(evaluation: Evaluation, names: Collection[str]) -> Evaluation:
    """The same document with these variants only."""
    if len(names) == len(evaluation.variants):
        return evaluation
    variants = [result for result in evaluation.variants if result.name in names]
    comparison = [row for row in evaluation.comparison if row.variant in names]
    return evaluation.model_copy(update={"variants": variants, "comparison": comparison})
