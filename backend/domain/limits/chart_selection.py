"""Chooses the variants that a chart shows at first: more lines than a reader can tell apart show nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from backend.domain.evaluation.document import Evaluation, Level
from backend.domain.evaluation.soundness import is_sound
from backend.domain.figures import finite

MOST_LINES = 8
"""Lines on a chart that a reader can still tell apart."""
FEW_ENOUGH = 12
"""Up to this number, all variants are drawn."""


def choose_foremost(evaluation: Evaluation) -> list[str]:
    """Choose the baseline, then the variants with the most levels on the Pareto front, then those with the highest
    throughput; returned in the evaluation's order."""
    names = [result.name for result in evaluation.variants]
    if len(names) <= FEW_ENOUGH:
        return names
    # 1. What each variant reached.
    levels_on_front, highest_total = [0] * len(names), [0.0] * len(names)
    for point in pareto_points(evaluation):
        levels_on_front[point.variant] += point.on_front
        highest_total[point.variant] = max(highest_total[point.variant], point.total)
    # 2. The best ones after the baseline.
    ranked = sorted(range(1, len(names)), key=lambda index: (-levels_on_front[index], -highest_total[index]))
    return [names[index] for index in sorted([0, *ranked[: MOST_LINES - 1]])]


def select_variants(evaluation: Evaluation, names: Collection[str]) -> Evaluation:
    """Return the same document with these variants only."""
    if len(names) == len(evaluation.variants):
        return evaluation
    variants = [result for result in evaluation.variants if result.name in names]
    comparison = [row for row in evaluation.comparison if row.variant in names]
    return evaluation.model_copy(update={"variants": variants, "comparison": comparison})


class ParetoPoint(NamedTuple):
    """`total` and `per_user` in output tokens/s. `on_front`: no other point is at least as good in both and better in
    one."""

    variant: int
    level: Level
    total: float
    per_user: float
    on_front: bool


def pareto_points(evaluation: Evaluation) -> list[ParetoPoint]:
    """Return every level with both throughputs. Levels that are not sound are never on the front."""
    # 1. A point for each level with both figures.
    points: list[ParetoPoint] = []
    for index, result in enumerate(evaluation.variants):
        for level in result.levels:
            total = finite(level.output_tokens_per_s)
            per_user = finite(level.output_tokens_per_s_per_request)
            if total is not None and per_user is not None:
                points.append(ParetoPoint(index, level, total, per_user, False))
    # 2. Mark those on the front.
    front = _front([(point.total, point.per_user) for point in points if is_sound(point.level)])
    return [
        point._replace(on_front=is_sound(point.level) and (point.total, point.per_user) in front) for point in points
    ]


def _front(points: Iterable[tuple[float, float]]) -> set[tuple[float, float]]:
    """Return the points that no other one dominates: by falling total, each with the best `per_user` so far."""
    front: set[tuple[float, float]] = set()
    best = -math.inf
    for total, per_user in sorted(points, reverse=True):
        if per_user > best:
            front.add((total, per_user))
            best = per_user
    return front
