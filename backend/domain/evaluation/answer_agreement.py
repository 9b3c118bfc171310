"""Measures how far two answers to the same prompt agree word by word, and whether one ends in a loop. Pure.

Exact match and token F1 as of SQuAD (Rajpurkar et al., SQuAD: 100,000+ Questions for Machine Comprehension of Text,
2016), with the original's answer in place of the truth; unlike there, nothing is lower-cased or removed: an answer may
be code. A request that failed has no answer, which is not an empty one: it is left out. A loop at the end of an answer
is easy to draft, so it inflates the gain of speculative decoding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from backend.domain.maths.intervals import mean_ci95, wilson

Interval = tuple[float, float]
SHORTEST_LOOP = 32
"""Characters: with fewer, a line of dashes or a run of closing brackets would count."""
REPEATS = 4


class Agreement(NamedTuple):
    """Means over pairs of answers: shares from 0 to 1, each with its 95% interval."""

    exact_match: float
    token_f1: float
    answers: int
    """Pairs that were compared."""
    exact_ci95: Interval
    token_f1_ci95: Interval | None
    """None where every pair has the same F1, so that its spread is not known."""


def is_exact_match(first: str, second: str) -> bool:
    """Tell whether both have the same words in the same order; white space does not count."""
    return first.split() == second.split()


def token_f1(first: str, second: str) -> float:
    """Return the harmonic mean of precision and recall over the bags of words; 1 where both are empty, 0 where one
    is."""
    a, b = Counter(first.split()), Counter(second.split())
    if not a or not b:
        return float(a == b)
    shared = (a & b).total()
    return 2 * shared / (a.total() + b.total())


def answered_pairs(baseline: Sequence[str | None], variant: Sequence[str | None]) -> list[tuple[str, str]]:
    """Pair answers to the same prompts by position, without pairs in which a request failed (None).

    Raises ValueError for lists of different length.
    """
    return [(a, b) for a, b in zip(baseline, variant, strict=True) if a is not None and b is not None]


def measure_agreement(pairs: Sequence[tuple[str, str]]) -> Agreement | None:
    """Measure the agreement of pairs of answers, each to one prompt; None without any."""
    if not pairs:
        return None
    same = sum(is_exact_match(a, b) for a, b in pairs)
    scores = [token_f1(a, b) for a, b in pairs]
    return Agreement(same / len(pairs), fmean(scores), len(pairs), wilson(same, len(pairs)), mean_interval(scores))


def mean_interval(shares: Sequence[float]) -> Interval | None:
    """Return the 95% interval of the mean of shares by Student's t, within 0 and 1.

    None where they are all the same or fewer than two.
    """
    interval = None if not shares or min(shares) == max(shares) else mean_ci95(shares)
    return interval and (max(0.0, interval[0]), min(1.0, interval[1]))


def pooled_interval(share: float, weights: Sequence[float]) -> Interval:
    """Return the 95% interval of a share that is pooled over answers; `weights`: tokens of each answer.

    An answer counts as one draw, since its tokens depend on each other. The variance of a draw from 0 to 1 with mean p
    is p (1 - p) at the most (Bhatia and Davis, A Better Bound on the Variance, 2000), so that of the weighted mean is
    at most p (1 - p) / n with n = (sum of w)^2 / (sum of w^2): Wilson's interval of so many draws, which is rather too
    wide than too narrow.
    """
    squares = math.fsum(weight * weight for weight in weights)
    draws = math.fsum(weights) ** 2 / squares if squares else 0.0
    return wilson(share * draws, draws)


def is_looping(text: str) -> bool:
    """Tell whether the text, without trailing white space, ends in a repeated cycle.

    That is, for some period p at least the last max(32, 4 p) characters each equal the one p before, after a full
    cycle.

    Periods come from the Z function of the reversed text (Gusfield 1997, section 1.4), so the cost is linear in the
    text.
    """
    tail = text.rstrip()[::-1]
    lengths = _z_function(tail)
    return any(p + lengths[p] >= max(SHORTEST_LOOP, REPEATS * p) for p in range(1, len(tail) // REPEATS + 1))


def _z_function(text: str) -> list[int]:
    """Return z with z[i] the length of the longest common prefix of text and text[i:]."""
    size = len(text)
    z = [0] * (size + 1)
    left = right = 0
    for i in range(1, size):
        length = min(right - i, z[i - left]) if i < right else 0
        while i + length < size and text[length] == text[i + length]:
            length += 1
        z[i] = length
        if i + length > right:
            left, right = i, i + length
    return z
