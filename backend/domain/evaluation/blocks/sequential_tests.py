"""How often the same question was tested, on more and more blocks, and the level of each test. Pure.

A test at 0.05 that is made again when more blocks are in has two chances to name a difference that is not there. So
what went before is paid for: a rule that was fixed beforehand shares one 0.05 out among its looks; of evaluations that
a person continues after having seen them, the k-th is tested at 0.05 / 2^k, so that all of them together come to
another 0.05 at most, whatever made the person go on (docs/decisions/0021-enough-blocks.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.frozen import Frozen
from backend.domain.maths.student_t import SIGNIFICANCE


class ContinuedEvaluation(Frozen):
    """The evaluation whose blocks come first. `folder` holds its document and its requests."""

    evaluation: str
    folder: str
    blocks: int
    """It had so many; the new ones are numbered on."""
    origin: int = 0
    """Block from which lines of the workload are counted for the new ones: 0 goes on behind the old ones' lines,
    `blocks` begins anew, where the workload has no more lines and the servers are started anew."""


class SequentialTest(Frozen):
    """One test of all comparisons, after so many blocks. Each interval of it covers at 1 - `alpha` or more."""

    blocks: int
    alpha: float
    continuation: int = 0
    """0 in the first evaluation, k in the k-th that continued it and was tested."""
    most: int | None = None
    """Of a rule that was fixed beforehand (`stopping_rule`): its cap. None of a single test."""
    undecided: int | None = None
    """Of a rule: comparisons that it was to decide and had not, after this look."""


def next_continuation(looks: Sequence[SequentialTest]) -> int:
    """Number of the next one; 0 where nothing was tested so far, since nothing was seen that could be named."""
    return looks[-1].continuation + 1 if looks else 0


def significance_level(number: int) -> float:
    """Of the family of tests in a continuation of that number: 0.05 / 2^k."""
    return float(SIGNIFICANCE / 2**number)
