"""How far two answers to the same prompt agree, word by word, and which answers changed most. Pure.

Exact match and token F1 as of SQuAD (Rajpurkar et al., SQuAD: 100,000+ Questions for Machine Comprehension of Text, 2016), with
the original's answer in the place of the truth; unlike there, nothing is lower-cased or taken away: an answer may be code.
A request that failed has no answer, which is not an empty one: it agrees and disagrees with nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from backend.domain.maths.intervals import wilson
from backend.domain.maths.student_t import quantile

Interval = tuple[float, float]


class Agreement(NamedTuple):
    """Means over the pairs: shares from 0 to 1, each with its 95% interval."""

    exact_match: float
    token_f1: float
    answers: int
    """Pairs that were compared."""
    exact_ci95: Interval
    token_f1_ci95: Interval | None
    """None where every pair has the same F1: nothing says how far another prompt's would be."""


def exact(first: str, second: str) -> bool:
    """The same words in the same order; white space does not count."""
    return first.split() == second.split()


def token_f1(first: str, second: str) -> float:
    """Harmonic mean of precision and recall over the bags of words; 1 where both are empty, 0 where one is."""
    a, b = Counter(first.split()), Counter(second.split())
    if not a or not b:
        return float(a == b)
    shared = (a & b).total()
    return 2 * shared / (a.total() + b.total())


def answered(baseline: Sequence[str | None], variant: Sequence[str | None]) -> list[tuple[str, str]]:
    """Of answers to the same prompts, by position, those pairs where neither is None, which is a request that failed.

    Raises ValueError for lists of different length.
    """
    return [(a, b) for a, b in zip(baseline, variant, strict=True) if a is not None and b is not None]


def agreement(pairs: Sequence[tuple[str, str]]) -> Agreement | None:
    """Of pairs of answers, each to one prompt; None without any."""
    if not pairs:
        return None
    same, scores = sum(exact(a, b) for a, b in pairs), [token_f1(a, b) for a, b in pairs]
    return Agreement(same / len(pairs), fmean(scores), len(pairs), wilson(same, len(pairs)), mean_interval(scores))


def mean_interval(shares: Sequence[float]) -> Interval | None:
    """95% interval of the mean of shares by Student's t, within 0 and 1; None where they are all the same or fewer than two."""
    if len(shares) < 2 or min(shares) == max(shares):
        return None
    mean, half = fmean(shares), quantile(0.975, len(shares) - 1) * stdev(shares) / math.sqrt(len(shares))
    return max(0.0, mean - half), min(1.0, mean + half)


def pooled_interval(share: float, weights: Sequence[float]) -> Interval:
    """95% interval of a share that is pooled over answers, such as that of all their tokens; `weights`: tokens of each answer.

    An answer counts as one draw, for its tokens hang together. The variance of a draw from 0 to 1 with mean p is p (1 - p) at
    the most (Bhatia and Davis, A Better Bound on the Variance, 2000), so that of the weighted mean is at most p (1 - p) / n with
    n = (sum of w)^2 / (sum of w^2): Wilson's interval of so many draws, which is rather too wide than too narrow.
    """
    squares = math.fsum(weight * weight for weight in weights)
    draws = math.fsum(weights) ** 2 / squares if squares else 0.0
    return wilson(share * draws, draws)
