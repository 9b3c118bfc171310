"""Whether speculation leaves answers as they are: greedy ones token by token, sampled ones by their distribution. Pure.

Speculative sampling keeps the target's distribution (Leviathan et al. 2023, appendix A.1), in exact arithmetic and as
written on paper. An engine has neither: a batch of another size rounds otherwise, and a head, a cache or a kernel may
be wrong. So the same variant without speculation is asked the same, and besides once more in larger batches, which is
what floating point alone does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.evidence.schema import SIGNIFICANT, Lossless, SampledPosition
from backend.domain.maths import chi_square
from backend.domain.maths.intervals import holm

Answer = Sequence[int]
"""Token ids."""
LEAST_EXPECTED = 5
"""Of a cell in each arm, for the chi-square distribution to hold (Cochran 1954); rarer tokens share one."""
POWER = 0.8
ENDED = -1
"""Stands for a token where an answer has ended."""


class GreedyAnswers(NamedTuple):
    """Answers to the same prompts in the same order; `drafted` tokens were proposed for the first."""

    speculating: Sequence[Answer]
    plain: Sequence[Answer]
    plain_at_once: Sequence[Answer]
    at_once: int
    drafted: int


class SampledAnswers(NamedTuple):
    """Of each prompt its samples, as many with speculation as without."""

    speculating: Sequence[Sequence[Answer]]
    plain: Sequence[Sequence[Answer]]
    drafted: int


def judge_answers(greedy: GreedyAnswers, sampled: SampledAnswers | None = None) -> Lossless:
    """Raises ValueError for arms of different length."""
    apart = [first_difference(*pair) for pair in zip(greedy.speculating, greedy.plain, strict=True)]
    itself = [first_difference(*pair) for pair in zip(greedy.plain, greedy.plain_at_once, strict=True)]
    differing, noise = (sum(each is not None for each in found) for found in (apart, itself))
    found = Lossless(
        prompts=len(apart),
        same=len(apart) - differing,
        divergences=tuple(sorted(each for each in apart if each is not None)),
        itself_same=len(itself) - noise,
        itself_at_once=greedy.at_once,
        p_value=fisher_p_value(differing, noise, len(apart)),
        drafted=greedy.drafted,
    )
    return found if sampled is None else found.model_copy(update=_tested(sampled))


def differs_by_speculation_only(plain: Variant, variant: Variant) -> bool:
    """Whether the first is what the other is without guessing: the same weights under the same settings."""
    return plain.speculation is None and (plain.model_path, plain.serving) == (variant.model_path, variant.serving)


def lossless_warning(found: Lossless | None) -> str:
    """What a warning says after the variant's name; empty where nothing was found."""
    if found is None or not found.differs:
        return ""
    return "does not keep the answers that it gives without speculation: its draft, head or kernels change them."


def first_difference(one: Answer, other: Answer) -> int | None:
    """Counted from 1; None where they are the same."""
    if list(one) == list(other):
        return None
    pairs = enumerate(zip(one, other, strict=False), 1)
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)) + 1)


def fisher_p_value(first: int, second: int, of: int) -> float:
    """One-sided p of Fisher's exact test that something happens no more often in the first of two series of `of`."""
    total, every = first + second, math.comb(2 * of, first + second)
    ways = (math.comb(of, each) * math.comb(of, total - each) for each in range(first, min(of, total) + 1))
    return min(1.0, sum(ways) / every)


def _tested(sampled: SampledAnswers) -> dict[str, object]:
    """From the second token on, which is the first that a draft has a part in; an answer is one draw at each
    position."""
    samples = len(sampled.plain[0])
    longest = max(len(answer) for prompt in sampled.plain for answer in prompt)
    tests = [_homogeneous(sampled, place) for place in range(1, longest)]
    adjusted = holm([p for p, _ in tests])
    positions = tuple(
        SampledPosition(
            number=place + 2,
            p_value=test.p_adjusted,
            found_distance=_distance(df, len(tests), samples, len(sampled.plain)),
        )
        for place, (test, (_, df)) in enumerate(zip(adjusted, tests, strict=True))
    )
    return {
        "samples": samples,
        "sampled_prompts": len(sampled.plain),
        "sampled_drafted": sampled.drafted,
        "positions": positions,
    }


def _homogeneous(sampled: SampledAnswers, place: int) -> tuple[float, int]:
    """(p, degrees of freedom) over all prompts: both arms of a prompt have as many samples, so a cell of a and b counts
    gives (a - b)^2 / (a + b)."""
    statistic, freedom = 0.0, 0
    for one, other in zip(sampled.speculating, sampled.plain, strict=True):
        cells = _cells(_counts(one, place), _counts(other, place))
        statistic += sum((a - b) ** 2 / (a + b) for a, b in cells)
        freedom += len(cells) - 1
    return (chi_square.upper_tail(statistic, freedom) if freedom else 1.0), max(freedom, 1)


def _counts(answers: Sequence[Answer], place: int) -> Counter[int]:
    return Counter(answer[place] if place < len(answer) else ENDED for answer in answers)


def _cells(one: Counter[int], other: Counter[int]) -> list[tuple[int, int]]:
    """The rare ones as one; left out where they are rare together too."""
    both = [(one[token], other[token]) for token in sorted(one.keys() | other.keys())]
    often = [pair for pair in both if sum(pair) >= 2 * LEAST_EXPECTED]
    rare = [pair for pair in both if sum(pair) < 2 * LEAST_EXPECTED]
    rest = (sum(pair[0] for pair in rare), sum(pair[1] for pair in rare))
    if sum(rest) >= 2 * LEAST_EXPECTED or not often:
        return [*often, rest]
    return [*often[:-1], (often[-1][0] + rest[0], often[-1][1] + rest[1])]


def _distance(df: int, tests: int, samples: int, prompts: int) -> float:
    """With p and q of the arms and n samples each, the noncentrality is n sum (p - q)^2 / (p + q), by Cauchy and
    Schwarz at least 2 n d^2 of a prompt with total-variation distance d: what is needed of it, over all prompts, as a
    distance."""
    needed = chi_square.detectable_noncentrality(df, SIGNIFICANT / tests, POWER)
    return math.sqrt(needed / (2 * samples * prompts))
