"""Chooses one of several choices for each group, with the least sum of losses within a budget. Exact.

The multiple-choice knapsack problem (Sinha and Zoltners 1979, Operations Research 27:503; Kellerer, Pferschy and
Pisinger 2004, Knapsack Problems, chapter 11): non-dominated partial sums group by group, cut off by the bound of the
linear relaxation, which is the greedy walk along the groups' convex hulls. Written by hand: of scipy only the general
solver for whole numbers fits, whose answer is the best within a tolerance.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

HAIR = 1e-12
"""Relative: a bound this near to the best is no reason to stop looking."""


class KnapsackChoice(NamedTuple):
    cost: int
    loss: float


class _Step(NamedTuple):
    """The step from one corner of a group's hull to the next: what it saves and costs."""

    saved: float
    cost: int
    group: int

    @property
    def rate(self) -> float:
        return self.saved / self.cost


class _Rest:
    """The groups that are still to be chosen: their cheapest choices, and the most that a larger budget could save."""

    def __init__(self, groups: Sequence[Sequence[KnapsackChoice]], steps: Sequence[_Step]) -> None:
        cheapest = [min(choices, key=lambda choice: (choice.cost, choice.loss)) for choices in groups]
        self.cost = sum(choice.cost for choice in cheapest)
        self.loss = sum(choice.loss for choice in cheapest)
        self.steps = steps
        self.costs = list(accumulate((step.cost for step in steps), initial=0))
        self.saved = list(accumulate((step.saved for step in steps), initial=0.0))

    def bound(self, budget: int) -> float:
        """Return a lower bound of the loss of these groups within `budget`."""
        spare = budget - self.cost
        whole = bisect_right(self.costs, spare) - 1
        part = self.steps[whole].rate * (spare - self.costs[whole]) if whole < len(self.steps) else 0.0
        return self.loss - self.saved[whole] - part


def allocate(groups: Sequence[Sequence[KnapsackChoice]], budget: int) -> list[int]:
    """Return the index of each group's choice: the least sum of losses within `budget`, of equal ones the cheapest.

    Costs are whole and not negative. Raises ValueError where the cheapest choices together cost more than the budget.
    """
    # 1. Groups whose choices differ most come first, and the steps between choices by their gain.
    order = sorted(range(len(groups)), key=lambda number: -_spread(groups[number]))
    placed = [groups[number] for number in order]
    steps = sorted(
        (step for number, choices in enumerate(placed) for step in _hull(choices, number)), key=lambda s: -s.rate
    )
    # 2. What is still to come after each group.
    rests = [_Rest(placed[n:], [step for step in steps if step.group >= n]) for n in range(len(placed) + 1)]
    if rests[0].cost > budget:
        raise ValueError(f"a budget of {budget} is below {rests[0].cost}, which the cheapest choices cost")
    # 3. Extend partial choices group by group, from a bound that a greedy choice gives.
    best = _greedy(placed, steps, budget)
    states: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    for number, choices in enumerate(placed):
        states = _extended(states, choices, rests[number + 1], budget, best)
    # 4. The best, in the order of the groups.
    chosen = min(states, key=lambda state: (state[1], state[0]))[2]
    return [index for _, index in sorted(zip(order, chosen, strict=True))]


def least_budget(groups: Sequence[Sequence[KnapsackChoice]], most_loss: float) -> int | None:
    """Return the smallest budget whose allocation loses at most `most_loss`; None where none does."""
    low = sum(min(choice.cost for choice in choices) for choices in groups)
    high = sum(max(choice.cost for choice in choices) for choices in groups)

    def loss(budget: int) -> float:
        chosen = allocate(groups, budget)
        return sum(choices[index].loss for choices, index in zip(groups, chosen, strict=True))

    if loss(high) > most_loss:
        return None
    return low + bisect_left(range(low, high), True, key=lambda budget: loss(budget) <= most_loss)


def _spread(choices: Sequence[KnapsackChoice]) -> float:
    return max(choice.loss for choice in choices) - min(choice.loss for choice in choices)


def _front(choices: Sequence[KnapsackChoice]) -> list[int]:
    """Return the indices of choices that no other beats in both cost and loss, by rising cost."""
    front: list[int] = []
    for index in sorted(range(len(choices)), key=lambda n: (choices[n].cost, choices[n].loss, n)):
        if not front or choices[index].loss < choices[front[-1]].loss:
            front.append(index)
    return front


def _hull(choices: Sequence[KnapsackChoice], group: int) -> list[_Step]:
    """The steps along the lower convex hull, the best rate first."""
    steps: list[_Step] = []
    corners: list[int] = []
    for index in _front(choices):
        while corners:
            before = choices[corners[-1]]
            step = _Step(before.loss - choices[index].loss, choices[index].cost - before.cost, group)
            if not steps or step.rate < steps[-1].rate:
                steps.append(step)
                break
            steps.pop()
            corners.pop()
        corners.append(index)
    return steps


def _greedy(groups: Sequence[Sequence[KnapsackChoice]], steps: Sequence[_Step], budget: int) -> float:
    """Return the loss of the greedy solution: all steps that fit, the best rate first.

    A group whose step did not fit takes no further one.
    """
    rest = _Rest(groups, steps)
    spare, loss, stuck = budget - rest.cost, rest.loss, set[int]()
    for step in steps:
        if step.group in stuck or step.cost > spare:
            stuck.add(step.group)
            continue
        spare, loss = spare - step.cost, loss - step.saved
    return loss


def _extended(
    states: Sequence[tuple[int, float, tuple[int, ...]]],
    choices: Sequence[KnapsackChoice],
    rest: _Rest,
    budget: int,
    best: float,
) -> list[tuple[int, float, tuple[int, ...]]]:
    """Extend every partial sum by every choice.

    Leaves out those that cost too much, are dominated by another, or cannot win.
    """
    # 1. Every extension that leaves enough of the budget for the rest.
    longer = []
    front = _front(choices)
    for cost, loss, indexes in states:
        for index in front:
            if cost + choices[index].cost + rest.cost <= budget:
                longer.append((cost + choices[index].cost, loss + choices[index].loss, (*indexes, index)))
    # 2. Those that no cheaper one beats and that may still win.
    promising: list[tuple[int, float, tuple[int, ...]]] = []
    limit = best + HAIR * max(1.0, abs(best))
    for state in sorted(longer):
        if (not promising or state[1] < promising[-1][1]) and state[1] + rest.bound(budget - state[0]) <= limit:
            promising.append(state)
    return promising
