"""Tests whether speculation changes answers: greedy ones token by token, sampled ones by their distribution. Pure.

Speculative sampling preserves the target's distribution (Leviathan et al. 2023, appendix A.1), in exact arithmetic and
as written on paper. An engine has neither: a batch of another size rounds differently, and a head, a cache or a kernel
may be wrong. So the same variant without speculation gets the same prompts, and once more in larger batches, which
shows what floating point alone does.
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
"""Least expected count of a cell in each arm, for the chi-square distribution to hold (Cochran 1954); rarer tokens
share one cell."""
ENDED = -1
"""Used in place of a token where an answer has ended."""


class GreedyAnswers(NamedTuple):
    """Answers to the same prompts in the same order; `drafted` tokens were proposed for the first."""

    speculating: Sequence[Answer]
    plain: Sequence[Answer]
    plain_at_once: Sequence[Answer]
    at_once: int
    drafted: int


class SampledAnswers(NamedTuple):
    """The samples of each prompt, as many with speculation as without."""

    speculating: Sequence[Sequence[Answer]]
    plain: Sequence[Sequence[Answer]]
    drafted: int


def judge_answers(greedy: GreedyAnswers, sampled: SampledAnswers | None = None) -> Lossless:
    """Compare the answers with and without speculation. Raises ValueError for arms of different length."""
    # 1. Greedy answers, beside those of the plain variant in larger batches.
    changed = [first_difference(*pair) for pair in zip(greedy.speculating, greedy.plain, strict=True)]
    noise = [first_difference(*pair) for pair in zip(greedy.plain, greedy.plain_at_once, strict=True)]
    divergences = sorted(place for place in changed if place is not None)
    noisy = sum(place is not None for place in noise)
    lossless = Lossless(
        prompts=len(changed),
        same=len(changed) - len(divergences),
        divergences=tuple(divergences),
        itself_same=len(noise) - noisy,
        itself_at_once=greedy.at_once,
        p_value=fisher_p_value(len(divergences), noisy, len(changed)),
        drafted=greedy.drafted,
    )
    # 2. Sampled answers, where there are any.
    return lossless if sampled is None else lossless.model_copy(update=_test_samples(sampled))


def differs_by_speculation_only(plain: Variant, variant: Variant) -> bool:
    """Tell whether the first is the other without speculation: the same weights under the same settings."""
    return plain.speculation is None and (plain.model_path, plain.serving) == (variant.model_path, variant.serving)


def lossless_warning(lossless: Lossless | None) -> str:
    """Return the warning that follows the variant's name; empty where no change was shown."""
    if lossless is None or not lossless.differs:
        return ""
    return "changes answers by speculation: its draft, head or kernels do not give what it answers without."


def first_difference(one: Answer, other: Answer) -> int | None:
    """Return the position of the first different token, from 1; None where the answers are the same."""
    if list(one) == list(other):
        return None
    pairs = enumerate(zip(one, other, strict=False), 1)
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)) + 1)


def fisher_p_value(first: int, second: int, trials: int) -> float:
    """Return the one-sided p-value of Fisher's exact test that an event is no more frequent in the first series.

    `first` and `second` are the events in two series of `trials` each.
    """
    events = first + second
    combinations = math.comb(2 * trials, events)
    as_extreme = 0
    for count in range(first, min(trials, events) + 1):
        as_extreme += math.comb(trials, count) * math.comb(trials, events - count)
    return min(1.0, as_extreme / combinations)


def _test_samples(sampled: SampledAnswers) -> dict[str, object]:
    """Test each position from the second token on, the first that a draft can affect.

    An answer is one draw at each position.
    """
    # 1. One test a position; Holm corrects for their number.
    samples = len(sampled.plain[0])
    longest = max(len(answer) for prompt in sampled.plain for answer in prompt)
    tests = [_homogeneous(sampled, place) for place in range(1, longest)]
    adjusted = holm([p for p, _ in tests])
    # 2. The difference that each test would have shown.
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
    """Return (p, degrees of freedom) of the test over all prompts.

    Both arms of a prompt have as many samples, so a cell with counts a and b gives (a - b)^2 / (a + b).
    """
    statistic, freedom = 0.0, 0
    for one, other in zip(sampled.speculating, sampled.plain, strict=True):
        cells = _cells(_counts(one, place), _counts(other, place))
        statistic += sum((a - b) ** 2 / (a + b) for a, b in cells)
        freedom += len(cells) - 1
    return (chi_square.upper_tail(statistic, freedom) if freedom else 1.0), max(freedom, 1)


def _counts(answers: Sequence[Answer], place: int) -> Counter[int]:
    return Counter(answer[place] if place < len(answer) else ENDED for answer in answers)


def _cells(one: Counter[int], other: Counter[int]) -> list[tuple[int, int]]:
    """Return the cells of two arms, rare tokens joined in one; if that is rare too, it joins the last frequent cell."""
    both = [(one[token], other[token]) for token in sorted(one.keys() | other.keys())]
    frequent = [pair for pair in both if sum(pair) >= 2 * LEAST_EXPECTED]
    rare = [pair for pair in both if sum(pair) < 2 * LEAST_EXPECTED]
    rest = (sum(pair[0] for pair in rare), sum(pair[1] for pair in rare))
    if sum(rest) >= 2 * LEAST_EXPECTED or not frequent:
        return [*frequent, rest]
    return [*frequent[:-1], (frequent[-1][0] + rest[0], frequent[-1][1] + rest[1])]


def _distance(df: int, tests: int, samples: int, prompts: int) -> float:
    """Return the least total-variation distance that the test detects, root mean square over the prompts.

    With p and q of the arms and n samples each, the noncentrality is n sum (p - q)^2 / (p + q), by Cauchy and Schwarz
    at least 2 n d^2 for a prompt with total-variation distance d.
    """
    needed = chi_square.detectable_noncentrality(df, SIGNIFICANT / tests)
    return math.sqrt(needed / (2 * samples * prompts))
