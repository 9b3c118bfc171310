"""Least squares with coefficients that are not negative, for a few coefficients of costs.

The active set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23) on the normal equations.

Written by hand: workers run it in the engine environments, and those that serve have no scipy.
"""

from __future__ import annotations

from collections.abc import Sequence

_TOLERANCE = 1e-10
"""Tolerance of a gradient or pivot, relative to the largest."""
_ROUNDS = 10
"""Most rounds for each coefficient; the method ends by itself, rounding errors aside."""


def nonnegative_least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return the x >= 0 with the least sum over rows of (row . x - value)^2. Columns are scaled, so any units will do.

    Of columns that are multiples of each other one gets all, the others 0. Raises ValueError without a row, and where
    rows or values differ in length.
    """
    if not rows or len(rows) != len(values) or len({len(row) for row in rows}) != 1:
        raise ValueError("least squares need rows of one length, and a value each")
    width = len(rows[0])
    scale = [max((abs(row[i]) for row in rows), default=0.0) or 1.0 for i in range(width)]
    scaled = [[row[i] / scale[i] for i in range(width)] for row in rows]
    normal = [[sum(row[i] * row[j] for row in scaled) for j in range(width)] for i in range(width)]
    right = [sum(row[i] * value for row, value in zip(scaled, values, strict=True)) for i in range(width)]
    return [x / factor for x, factor in zip(_active_set(normal, right), scale, strict=True)]


def _active_set(normal: list[list[float]], right: list[float]) -> list[float]:
    width, used = len(right), list[int]()
    x = [0.0] * width
    least = _TOLERANCE * max((abs(value) for value in right), default=0.0)
    for _ in range(_ROUNDS * width):
        slopes = [right[i] - sum(normal[i][j] * x[j] for j in used) for i in range(width)]
        free = [i for i in range(width) if i not in used and slopes[i] > least]
        if not free:
            break
        used.append(max(free, key=lambda i: slopes[i]))
        tried = _solved(normal, right, used)
        while (worst := min(tried.values())) < 0:
            steps = [x[i] / (x[i] - value) for i, value in tried.items() if value < 0]
            step = min(steps)
            x = [x[i] + step * (tried[i] - x[i]) if i in tried else 0.0 for i in range(width)]
            dropped = {i for i, value in tried.items() if value < 0 and x[i] <= _TOLERANCE * max(1.0, -worst)}
            used = [i for i in used if i not in dropped]
            tried = _solved(normal, right, used) if used else {width: 0.0}
        x = [tried.get(i, 0.0) for i in range(width)]
    return x


def _solved(normal: list[list[float]], right: list[float], used: list[int]) -> dict[int, float]:
    """Solve without constraints over the `used` columns by Gaussian elimination; 0 for a column that depends on
    others."""
    matrix = [[*(normal[i][j] for j in used), right[i]] for i in used]
    size = len(used)
    pivots: list[int | None] = []
    for column in range(size):
        free = [row for row in range(size) if row not in pivots]
        best = max(free, key=lambda row: abs(matrix[row][column]))
        if abs(matrix[best][column]) <= _TOLERANCE * normal[used[column]][used[column]]:
            pivots.append(None)
            continue
        pivots.append(best)
        for row in range(size):
            if row != best:
                factor = matrix[row][column] / matrix[best][column]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[best], strict=True)]
    return {
        used[column]: 0.0 if row is None else matrix[row][size] / matrix[row][column]
        for column, row in enumerate(pivots)
    }
