"""Numbers as text: significant digits, factors with their interval, counts and shares.

Knows nothing of what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def figure(value: float | None, digits: int = 3) -> str:
    """Return a number with `digits` significant digits and thousands apart; "not measured" for None."""
    if value is None or not math.isfinite(value):
        return "not measured"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 8)}f}"


def rounded(value: float, digits: int = 3) -> float:
    """Return the number that `figure` writes, for a table that sorts by it: 10.3872 -> 10.4, 1,234.5 -> 1,235."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def compression_ratio(original: int | None, compressed: int | None) -> float | None:
    """Return bytes of the original over bytes of the compressed form; None where either is not known."""
    return original / compressed if original and compressed else None


def times(ratio: float, interval: tuple[float, float] | None = None) -> str:
    """Return a factor with its interval: `1.31x (95% 1.25 to 1.38)`."""
    factor, bounds = factor_and_bounds(ratio, interval)
    return f"{factor} (95% {bounds})" if bounds else factor


def factor_and_bounds(ratio: float, interval: tuple[float, float] | None) -> tuple[str, str]:
    """Return (`1.31x`, `1.25 to 1.38`), to three significant digits, more where a bound would be rounded onto 1."""
    if interval is None:
        return f"{_factor(ratio, 0)}x", ""
    apart = interval[0] > 1 or interval[1] < 1
    needed = next((d for d in range(2, 7) if all(round(end, d) != 1 for end in interval)), 7) if apart else 0
    return f"{_factor(ratio, needed)}x", f"{_factor(interval[0], needed)} to {_factor(interval[1], needed)}"


def _factor(value: float, needed: int) -> str:
    """Return the factor with at least `needed` decimals where it is near 1."""
    if not 1e-3 <= value < 1e5:
        return f"{value:.2e}"
    decimals = 2 - math.floor(math.log10(value))
    return f"{value:.{max(0, min(decimals, 2) if value >= 0.1 else decimals, needed if value < 2 else 0)}f}"


def streams(number: int) -> str:
    """Return `1 stream`, `4 streams`."""
    return counted(number, "stream")


def counted(number: float, name: str) -> str:
    """Return `1 repeat`, `5 repeats`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def code(words: str) -> str:
    """Return foreign words as a code span of Markdown, on one line.

    A backtick, which would end the span, becomes an apostrophe.
    """
    return f"`{' '.join(words.split()).replace('`', chr(39))}`"


def listed(names: Sequence[str]) -> str:
    """Return `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def span(length_s: float) -> str:
    """Return a length of time: `90 s`, `30 min`, `2 h`."""
    if length_s >= 7200:
        return f"{length_s / 3600:.3g} h"
    return f"{length_s / 60:.3g} min" if length_s >= 120 else f"{length_s:.3g} s"


def level(alpha: float) -> str:
    """Return an error rate: `5%`, `0.035%`."""
    return f"{float(f'{100 * alpha:.2g}'):g}%"


def share(value: float, interval: tuple[float, float] | None, *, intervals: bool = True) -> str:
    """Return a share with its interval: `91.7% (95% 64.6 to 98.5)`."""
    bounds = f" (95% {interval[0] * 100:.1f} to {interval[1] * 100:.1f})" if interval and intervals else ""
    return f"{value:.1%}{bounds}"


def small(value: float) -> str:
    """Return four decimals where they are enough, else two significant digits."""
    if value == 0:
        return "0"
    return f"{value:.4f}" if abs(value) >= 1e-4 else f"{value:.1e}"


def finite(value: float | None) -> float | None:
    """Return the figure; None for Infinity and NaN, which cannot be drawn."""
    return value if value is not None and math.isfinite(value) else None
