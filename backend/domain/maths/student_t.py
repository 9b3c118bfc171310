"""Student's t distribution: quantile and p-value, as scipy computes them.

scipy is imported by the first call, so that processes which compute no interval stay small and start fast.
"""

from __future__ import annotations

import math
from functools import lru_cache

SIGNIFICANCE = 0.05
POWER = 0.8
"""The probability with which a test is to decide, where the number of measurements is computed for it."""


@lru_cache(maxsize=8192)
def quantile(p: float, df: float) -> float:
    """Return the value that a t variable with `df` degrees of freedom is below with probability `p`.

    Cached, since a search for a sample size needs the same few again and again. Raises ValueError unless 0 < p < 1 and
    df > 0.
    """
    from scipy import special

    if not 0 < p < 1 or not df > 0:
        raise ValueError(f"quantile needs 0 < p < 1 and df > 0, not p={p} and df={df}")
    return float(special.stdtrit(df, p))


def two_sided_p(t: float, df: float) -> float:
    """Return the probability of a t variable with `df` degrees of freedom at least as far from 0 as `t`.

    Raises ValueError unless df > 0 and t is a number.
    """
    from scipy import special

    if not df > 0 or math.isnan(t):
        raise ValueError(f"two_sided_p needs a number and df > 0, not t={t} and df={df}")
    return 2 * float(special.stdtr(df, -abs(t)))
