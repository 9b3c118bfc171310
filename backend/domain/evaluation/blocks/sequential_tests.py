"""Records every test of the same comparison on growing numbers of blocks, and the level of each. Pure.

A test at 0.05 that is repeated when more blocks are in has two chances to name a difference that is not there. Each
repetition therefore pays for the earlier ones: a rule that was fixed beforehand divides one 0.05 over its tests; where
a person continues evaluations after seeing them, the k-th continuation is tested at 0.05 / 2^k, so that all of them
together add at most another 0.05, whatever made the person go on (docs/decisions/0021-enough-blocks.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.frozen import Frozen
from backend.domain.maths.student_t import SIGNIFICANCE


class ContinuedEvaluation(Frozen):
    """The evaluation that is continued; its blocks come first. `folder` holds its document and its requests."""

    evaluation: str
    folder: str
    blocks: int
    """Number of blocks it had; the new ones are numbered after them."""
    origin: int = 0
    """The block from which lines of the workload are counted for the new blocks: 0 goes on after the old blocks' lines;
    `blocks` starts again at the first line, where the workload has no more and the servers are started anew."""


class SequentialTest(Frozen):
    """One test of all comparisons after a number of blocks. Each of its intervals covers at 1 - `alpha` or more."""

    blocks: int
    alpha: float
    continuation: int = 0
    """0 in the first evaluation, k in the k-th tested one that continued it."""
    most: int | None = None
    """The most blocks of a rule that was fixed beforehand (`stopping_rule`); None for a single test."""
    undecided: int | None = None
    """With a rule: the comparisons that were still undecided after this test."""


def next_continuation(tests: Sequence[SequentialTest]) -> int:
    """Return the number of the next continuation; 0 where nothing was tested, so that nobody has seen a result yet."""
    return tests[-1].continuation + 1 if tests else 0


def significance_level(continuation: int) -> float:
    """Return the level of all tests in a continuation: 0.05 / 2^k for number k."""
    return float(SIGNIFICANCE / 2**continuation)
