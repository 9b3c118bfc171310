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
    logs = [_block_means(log_ratios(results, row), sum(sessions)) for row in tested]
    tests = holm([welch_p_value(ratios[:before], ratios[before:]) for ratios in logs])
    differing = [index for index, test in enumerate(tests) if test.p_adjusted <= SIGNIFICANCE]
    if not differing:
        return None
    # 2. Report the clearest difference.
    clearest = min(differing, key=lambda index: tests[index].p_adjusted)
    row, ratios = tested[clearest], logs[clearest]
    earlier, later = math.exp(fmean(ratios[:before])), math.exp(fmean(ratios[before:]))
    return (
        f"The blocks after the first {before} were measured later, and their ratios differ by more than chance "
        f"(`{row.variant}`, {row.metric} at {row.load.words}: {earlier:.3f} before, {later:.3f} after). Something that "
        "changed in between, such as the servers' start, affects them, so the intervals are too narrow. Measure again, "
        "ideally with servers that are started in each block."
    )


def _block_means(ratios: Sequence[float], blocks: int) -> list[float]:
    """Return the mean log ratio of each block; slices of one block are too alike to count as independent."""
    slices = max(1, len(ratios) // blocks)
    return [fmean(ratios[first : first + slices]) for first in range(0, len(ratios), slices)]


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
