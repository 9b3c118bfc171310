"""Chi-square tests of counts and their power, with scipy's central and noncentral distribution.

The least noncentrality that a test detects is found by bisection to a part in a thousand, as it always was: the figure
stands in stored evaluations. scipy is imported by the first call.
"""

from __future__ import annotations

from backend.domain.maths.student_t import POWER

_PRECISION = 1e-3


def upper_tail(value: float, df: float) -> float:
    """Return the probability of a chi-square variable with `df` degrees of freedom above `value`.

    Raises ValueError unless df > 0.
    """
    from scipy import special

    if not df > 0:
        raise ValueError(f"upper_tail needs df > 0, not {df}")
    return float(special.chdtrc(df, max(0.0, value)))


def critical_value(alpha: float, df: float) -> float:
    """Return the value that a chi-square variable is above with probability `alpha`."""
    from scipy import special

    return float(special.chdtri(df, alpha))


def power(noncentrality: float, df: float, alpha: float) -> float:
    """Return the power of the test at level `alpha`: the probability of a noncentral variable above its critical
    value."""
    from scipy import special

    return 1 - float(special.chndtr(critical_value(alpha, df), df, noncentrality))


def detectable_noncentrality(df: float, alpha: float, chance: float = POWER) -> float:
    """Return the least noncentrality that the test at level `alpha` detects with that chance."""
    low, high = 0.0, 1.0
    while power(high, df, alpha) < chance:
        low, high = high, high * 2
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        if power(middle, df, alpha) >= chance:
            high = middle
        else:
            low = middle
    return high
