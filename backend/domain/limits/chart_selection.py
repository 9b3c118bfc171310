"""Which of many variants a chart begins with: more lines than a person can tell apart say nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from backend.domain.evaluation.document import Evaluation, Level
from backend.domain.evaluation.soundness import is_sound
from backend.domain.figures import finite

MOST_LINES = 8
"""Lines on a chart that can still be told apart."""
FEW_ENOUGH = 12
"""Up to so many variants, all are drawn."""


def choose_foremost(evaluation: Evaluation) -> list[str]:
    """The baseline, then those with the most levels on the Pareto front, then those with the highest throughput; in the
    evaluation's order."""
    names = [result.name for result in evaluation.variants]
    if len(names) <= FEW_ENOUGH:
        return names
    front, highest = [0] * len(names), [0.0] * len(names)
    for point in pareto_points(evaluation):
        front[point.variant] += point.on_front
        highest[point.variant] = max(highest[point.variant], point.total)
    ranked = sorted(range(1, len(names)), key=lambda index: (-front[index], -highest[index]))
    return [names[index] for index in sorted([0, *ranked[: MOST_LINES - 1]])]


def select_variants(evaluation: Evaluation, names: Collection[str]) -> Evaluation:
    """The same document with these variants only."""
    if len(names) == len(evaluation.variants):
        return evaluation
    variants = [result for result in evaluation.variants if result.name in names]
    comparison = [row for row in evaluation.comparison if row.variant in names]
    return evaluation.model_copy(update={"variants": variants, "comparison": comparison})


class ParetoPoint(NamedTuple):
    """`total` and `per_user` in output tokens/s. On the front: no other point is at least as good in both and better in
    one."""

    variant: int
    level: Level
    total: float
    per_user: float
    on_front: bool


def pareto_points(evaluation: Evaluation) -> list[ParetoPoint]:
    """Every level with both throughputs. Levels that are not comparable are shown, but never on the front."""
    points = [
        ParetoPoint(index, level, total, per_user, False)
        for index, result in enumerate(evaluation.variants)
        for level in result.levels
        if (total := finite(level.output_tokens_per_s)) is not None
        and (per_user := finite(level.output_tokens_per_s_per_request)) is not None
    ]
    front = _front([(point.total, point.per_user) for point in points if is_sound(point.level)])
    return [
        point._replace(on_front=is_sound(point.level) and (point.total, point.per_user) in front) for point in points
    ]


def _front(points: Iterable[tuple[float, float]]) -> set[tuple[float, float]]:
    """Those that no other point is at least as good as in both and better than in one: by falling total, each the best
    so far."""
    found: set[tuple[float, float]] = set()
    best = -math.inf
    for total, per_user in sorted(points, reverse=True):
        if per_user > best:
            found.add((total, per_user))
            best = per_user
    return found
