"""Student's t distribution: quantile and p-value.

Relative error below 1e-10: the distribution function is the regularized incomplete beta function, by Lentz's continued
fraction (Press et al., Numerical Recipes, 3rd edition, section 6.4); the quantile inverts it by bisection.

Written by hand: workers run it in the engine environments, and those that serve have no scipy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice

_TINY = 1e-300
_PRECISION = 1e-15
_TERMS = 10_000


@lru_cache(maxsize=8192)
def quantile(p: float, df: float) -> float:
    """Return the value that a t variable with `df` degrees of freedom is below with probability `p`.

    Cached: a search for a sample size needs the same few again and again, and each takes fifty continued fractions.
    Raises ValueError unless 0 < p < 1 and df > 0.
    """
    if not 0 < p < 1 or not df > 0:
        raise ValueError(f"quantile needs 0 < p < 1 and df > 0, not p={p} and df={df}")
    if p == 0.5:
        return 0.0
    tail = min(p, 1 - p)
    value = _bisect(2 * tail, df)
    return value if p > 0.5 else -value


def two_sided_p(t: float, df: float) -> float:
    """Return the probability of a t variable with `df` degrees of freedom at least as far from 0 as `t`.

    Raises ValueError unless df > 0 and t is a number.
    """
    if not df > 0 or math.isnan(t):
        raise ValueError(f"two_sided_p needs a number and df > 0, not t={t} and df={df}")
    if math.isinf(t):
        return 0.0
    square = t * t
    return incomplete_beta(df / 2, 0.5, df / (df + square), square / (df + square))


def _bisect(p: float, df: float) -> float:
    high = 1.0
    while two_sided_p(high, df) > p:
        high *= 2
    low = 0.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if two_sided_p(middle, df) > p:
            low = middle
        else:
            high = middle


def incomplete_beta(a: float, b: float, x: float, complement: float | None = None) -> float:
    """Return the regularized I_x(a, b). `complement` is 1 - x where the caller knows it more exactly than by
    subtraction."""
    y = 1 - x if complement is None else complement
    if x <= 0:
        return 0.0
    if y <= 0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)
    front = math.exp(log_front)
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(a, b, x) / a
    return 1 - front * _continued_fraction(b, a, y) / b


def _coefficients(a: float, b: float, x: float) -> Iterator[float]:
    """Yield d_1, d_2, ... of equation 6.4.6."""
    m = 0
    while True:
        yield -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        m += 1
        yield m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))


def _continued_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the fraction by the modified Lentz method; it converges in O(sqrt(max(a, b))) terms where x < (a + 1) /
    (a + b + 2)."""
    value, c, d = _TINY, _TINY, 0.0
    for coefficient in islice(chain([1.0], _coefficients(a, b, x)), _TERMS):
        d = _away_from_zero(1 + coefficient * d)
        c = _away_from_zero(1 + coefficient / c)
        d = 1 / d
        value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


SIGNIFICANCE = 0.05
