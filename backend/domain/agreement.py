"""How far two answers to the same prompt agree, word by word, and which answers changed most. Pure.

Exact match and token F1 as of SQuAD (Rajpurkar et al., SQuAD: 100,000+ Questions for Machine Comprehension of Text, 2016), with
the original's answer in the place of the truth; unlike there, nothing is lower-cased or taken away: an answer may be code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple


class Agreement(NamedTuple):
    """Means over the pairs: shares from 0 to 1."""

    exact_match: float
    token_f1: float
    answers: int


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


def agreement(baseline: Sequence[str], variant: Sequence[str]) -> Agreement | None:
    """Of answers to the same prompts, pairs by position; None without any. Raises ValueError for lists of different length."""
    pairs = list(zip(baseline, variant, strict=True))
    if not pairs:
        return None
    return Agreement(fmean(exact(a, b) for a, b in pairs), fmean(token_f1(a, b) for a, b in pairs), len(pairs))
