"""Least squares with coefficients that are not negative, for a few coefficients of costs: scipy's, on scaled columns.

scipy is imported by the first call.
"""

from __future__ import annotations

from collections.abc import Sequence

_ROUNDS = 10
"""Most rounds for each coefficient; the method ends by itself, rounding errors aside."""


def nonnegative_least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the x >= 0 with the least sum over rows of (row . x - value)^2. Columns are scaled, so any units will do.

    Of columns that are multiples of each other one gets all, the others 0. Raises ValueError without a row, and where
    rows or values differ in length.
    """
    from scipy import optimize

    if not rows or len(rows) != len(values) or len({len(row) for row in rows}) != 1:
        raise ValueError("least squares need rows of one length, and a value each")
    width = len(rows[0])
    scale = [max(abs(row[i]) for row in rows) or 1.0 for i in range(width)]
    scaled = [[value / factor for value, factor in zip(row, scale, strict=True)] for row in rows]
    solution, _ = optimize.nnls(scaled, values, maxiter=_ROUNDS * width)
    return [float(x) / factor for x, factor in zip(solution, scale, strict=True)]
