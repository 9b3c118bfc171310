"""Tests whether blocks of one start of the servers differ from those of an earlier start by more than chance. Pure.

A server may be a little faster or slower from one start to the next, for as long as it is up. Where all servers stay
up, the blocks of one start share that, and an interval that takes all blocks as independent is too narrow. Where
servers are started anew in every block, each block has a start of its own and there is nothing to test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

from backend.domain.evaluation.comparison import ROUNDING, log_ratios
from backend.domain.evaluation.document import Comparison, VariantResult
from backend.domain.maths import student_t
from backend.domain.maths.intervals import holm
from backend.domain.maths.student_t import SIGNIFICANCE


def drift_warning(
    results: Sequence[VariantResult], comparison: Sequence[Comparison], sessions: Sequence[int]
) -> str | None:
    """Warn in one sentence where the blocks of the last start give another ratio than those before.

    `sessions`: the blocks of each start. None where they agree, and where there was a single start.
    """
    before = sum(sessions[:-1])
    if not before:
        return None
    # 1. Test every comparison, corrected for their number.
    tested = [row for row in comparison if row.why is None]
    starts = [_split(log_ratios(results, row), _blocks(results, row, sum(sessions)), before) for row in tested]
    tests = holm([welch_p_value(*ratios) for ratios in starts])
    differing = [index for index, test in enumerate(tests) if test.p_adjusted <= SIGNIFICANCE]
    if not differing:
        return None
    # 2. Report the clearest difference.
    clearest = min(differing, key=lambda index: tests[index].p_adjusted)
    row = tested[clearest]
    earlier, later = (math.exp(fmean(ratios)) for ratios in starts[clearest])
    return (
        f"The blocks after the first {before} were measured later, and their ratios differ by more than chance "
        f"(`{row.variant}`, {row.metric} at {row.load.words}: {earlier:.3f} before, {later:.3f} after). Something that "
        "changed in between, such as the servers' start, affects them, so the intervals are too narrow. Measure again, "
        "ideally with servers that are started in each block."
    )


def _blocks(results: Sequence[VariantResult], row: Comparison, measured: int) -> list[int]:
    """Return the blocks that are part of the level of a comparison, in order."""
    levels = next(result.levels for result in results if result.name == row.variant)
    left_out = next(level.audit.late_blocks for level in levels if level.load == row.load)
    return [block for block in range(measured) if block not in left_out]


def _split(ratios: Sequence[float], blocks: Sequence[int], before: int) -> tuple[list[float], list[float]]:
    """Return the mean log ratio of each block, those of the first `before` blocks apart from the later ones.

    Slices of one block are too alike to count as independent.
    """
    slices = max(1, len(ratios) // len(blocks))
    means = [fmean(ratios[first : first + slices]) for first in range(0, len(ratios), slices)]
    earlier = sum(block < before for block in blocks)
    return means[:earlier], means[earlier:]


def welch_p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of equal means by Welch's t-test (Biometrika 34, 1947).

    1 where a part has fewer than two values.
    """
    if min(len(first), len(second)) < 2:
        return 1.0
    errors = [variance(part) / len(part) for part in (first, second)]
    spread = sum(errors)
    if spread <= ROUNDING**2:
        return 1.0 if abs(fmean(first) - fmean(second)) <= ROUNDING else 0.0
    freedom = spread**2 / sum(error**2 / (len(part) - 1) for error, part in zip(errors, (first, second), strict=True))
    return student_t.two_sided_p((fmean(first) - fmean(second)) / math.sqrt(spread), freedom)
