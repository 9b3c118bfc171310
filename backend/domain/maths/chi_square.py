"""Chi-square tests of counts and their power.

The distribution function is the regularized incomplete gamma function, by its series or Lentz's continued fraction
(Press et al., Numerical Recipes, 3rd edition, section 6.2); the noncentral one is its mixture over a Poisson variable
(Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions 2, section 29.4).

Written by hand: workers run it in the engine environments, and those that serve have no scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_PRECISION = 1e-14
_TINY = 1e-300


def upper_tail(value: float, df: float) -> float:
    """Return the probability of a chi-square variable with `df` degrees of freedom above `value`.

    Raises ValueError unless df > 0.
    """
    if not df > 0:
        raise ValueError(f"upper_tail needs df > 0, not {df}")
    return 1.0 if value <= 0 else _upper_gamma(df / 2, value / 2)


def critical_value(alpha: float, df: float) -> float:
    """Return the value that a chi-square variable is above with probability `alpha`."""
    return _find_threshold(lambda value: upper_tail(value, df) <= alpha)


def power(noncentrality: float, df: float, alpha: float) -> float:
    """Return the power of the test at level `alpha`: the probability of a noncentral variable above its critical
    value."""
    limit, mean = critical_value(alpha, df), noncentrality / 2
    spread = 12 * math.sqrt(mean + 1) + 30
    terms = range(max(0, int(mean - spread)), int(mean + spread))
    weights = (
        math.exp(term * math.log(mean) - mean - math.lgamma(term + 1)) if mean else float(not term) for term in terms
    )
    return math.fsum(
        weight * upper_tail(limit, df + 2 * term) for term, weight in zip(terms, weights, strict=True) if weight
    )


def detectable_noncentrality(df: float, alpha: float, chance: float = 0.8) -> float:
    """Return the least noncentrality that the test at level `alpha` detects with that chance."""
    return _find_threshold(lambda value: power(value, df, alpha) >= chance, precision=1e-3)


def _find_threshold(reached: Callable[[float], bool], precision: float = 1e-9) -> float:
    """Return where a condition that is false at 0 becomes true for good, by bisection."""
    low, high = 0.0, 1.0
    while not reached(high):
        low, high = high, high * 2
    while high - low > precision * high:
        middle = (low + high) / 2
        if reached(middle):
            high = middle
        else:
            low = middle
    return high


def _upper_gamma(a: float, x: float) -> float:
    """Return the regularized upper incomplete gamma function Q(a, x)."""
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    return 1 - front * _series(a, x) if x < a + 1 else front * _fraction(a, x)


def _series(a: float, x: float) -> float:
    term = total = 1 / a
    place = a
    while abs(term) > abs(total) * _PRECISION:
        place += 1
        term *= x / place
        total += term
    return total


def _fraction(a: float, x: float) -> float:
    b, c = x + 1 - a, 1 / _TINY
    d = 1 / b
    value, number = d, 0
    while True:
        number += 1
        factor = -number * (number - a)
        b += 2
        d = 1 / (factor * d + b or _TINY)
        c = b + factor / c or _TINY
        value *= d * c
        if abs(d * c - 1) < _PRECISION:
            return value
