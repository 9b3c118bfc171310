"""A curve through measured points that never leaves their range: monotone cubic interpolation, no extrapolation.

scipy's PchipInterpolator: Fritsch and Butland, A Method for Constructing Local Monotone Piecewise Cubic Interpolants,
SIAM Journal on Scientific and Statistical Computing 5 (1984). Between two points the curve stays between their values.
The last place within a limit is found by bisection and not by the curve's roots, since it must be on the side that
meets the limit. scipy is imported when a curve is drawn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

Curve = Callable[[float], float | None]
HALVINGS = 60


def monotone_curve(x: Sequence[float], y: Sequence[float]) -> Curve:
    """Return the curve through (x, y); its value is None outside [x[0], x[-1]].

    `x` rises strictly, at least one point. Raises ValueError otherwise.
    """
    if not x or len(x) != len(y) or any(b <= a for a, b in pairwise(x)):
        raise ValueError("x must rise strictly and have one y each")
    if len(x) == 1:
        return lambda value: y[0] if value == x[0] else None
    from scipy.interpolate import PchipInterpolator

    curve = PchipInterpolator(x, y)

    def value_at(value: float) -> float | None:
        if not x[0] <= value <= x[-1]:
            return None
        k = max(0, min(bisect_right(x, value) - 1, len(x) - 2))
        low, high = sorted((y[k], y[k + 1]))
        return min(max(float(curve(value)), low), high)  # rounding alone could leave the points

    return value_at


def find_last_at_most(x: Sequence[float], y: Sequence[float], limit: float) -> float | None:
    """Return the largest x at which the curve is at most `limit`; None where it is nowhere."""
    if y[-1] <= limit:
        return x[-1]
    for k in range(len(x) - 2, -1, -1):
        if y[k] <= limit:
            return _crossing(monotone_curve(x, y), x[k], x[k + 1], limit)
    return None


def _crossing(curve: Curve, low: float, high: float, limit: float) -> float:
    """Return where the curve passes the limit: it is at most the limit at `low` and above it at `high`."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        value = curve(middle)
        if value is not None and value <= limit:
            low = middle
        else:
            high = middle
    return low
