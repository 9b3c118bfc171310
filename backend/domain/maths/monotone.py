"""A curve through measured points that never leaves their range: monotone cubic interpolation, no extrapolation.

Fritsch and Carlson, Monotone Piecewise Cubic Interpolation, SIAM Journal on Numerical Analysis 17 (1980), with the
slopes of Fritsch and Butland, A Method for Constructing Local Monotone Piecewise Cubic Interpolants, SIAM Journal on
Scientific and Statistical Computing 5 (1984): a weighted harmonic mean where both neighbours rise or both fall, else 0.
Between two points the curve stays between their values. The tests hold it to scipy's PchipInterpolator.
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
    slopes = _slopes(x, y)

    def value_at(value: float) -> float | None:
        if not x[0] <= value <= x[-1]:
            return None
        k = max(0, min(bisect_right(x, value) - 1, len(x) - 2))
        return _hermite(x, y, slopes, k, value) if len(x) > 1 else y[0]

    return value_at


def _slopes(x: Sequence[float], y: Sequence[float]) -> list[float]:
    if len(x) == 1:
        return [0.0]
    h = [b - a for a, b in pairwise(x)]
    d = [(b - a) / step for (a, b), step in zip(pairwise(y), h, strict=True)]
    inner = [_inner(h[k - 1], h[k], d[k - 1], d[k]) for k in range(1, len(d))]
    if len(d) == 1:
        return [d[0], d[0]]
    return [_end(h[0], h[1], d[0], d[1]), *inner, _end(h[-1], h[-2], d[-1], d[-2])]


def _inner(before: float, after: float, left: float, right: float) -> float:
    if left * right <= 0:
        return 0.0
    a, b = 2 * after + before, after + 2 * before
    return (a + b) / (a / left + b / right)


def _end(h0: float, h1: float, d0: float, d1: float) -> float:
    """Return the three-point slope at an end, limited where the curve would leave the points."""
    slope = ((2 * h0 + h1) * d0 - h0 * d1) / (h0 + h1)
    if slope * d0 <= 0:
        return 0.0
    if d0 * d1 <= 0 and abs(slope) > 3 * abs(d0):
        return 3 * d0
    return slope


def _hermite(x: Sequence[float], y: Sequence[float], m: Sequence[float], k: int, value: float) -> float:
    h = x[k + 1] - x[k]
    t = (value - x[k]) / h
    height = (
        (1 + 2 * t) * (1 - t) ** 2 * y[k]
        + t * (1 - t) ** 2 * h * m[k]
        + t**2 * (3 - 2 * t) * y[k + 1]
        + t**2 * (t - 1) * h * m[k + 1]
    )
    low, high = sorted((y[k], y[k + 1]))
    return min(max(height, low), high)  # rounding alone could leave the points


def find_last_at_most(x: Sequence[float], y: Sequence[float], limit: float) -> float | None:
    """Return the largest x at which the curve is at most `limit`; None where it is nowhere."""
    curve = monotone_curve(x, y)
    if y[-1] <= limit:
        return x[-1]
    for k in range(len(x) - 2, -1, -1):
        if y[k] <= limit:
            return _crossing(curve, x[k], x[k + 1], limit)
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
