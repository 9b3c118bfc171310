"""How far a served variant's next-token probabilities are from the served original's, from what a server tells of them.
Pure.

A server tells the most probable tokens of each position of a prompt with their log-probabilities (vLLM's
`prompt_logprobs`). With S the tokens that both told, and all others one bucket, KL over S and the bucket is at most the
KL over the whole vocabulary (the data processing inequality; Cover and Thomas, Elements of Information Theory, 2.8):
what is given here is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from backend.domain.evaluation.answer_agreement import Interval, mean_interval
from backend.domain.maths.intervals import mean_ci95

TokenLogprobs = Mapping[str, float]
"""Token id -> log-probability, of one position; the token of the text itself is among them."""
LEAST_PROBABILITY = 1e-9
"""The least that is taken for the probability of the bucket: what is told is rounded."""


class ServedDivergence(NamedTuple):
    """Means over positions, with 95% intervals over windows (None for fewer than two)."""

    kl: float
    """Nats a token; a lower bound."""
    kl_ci95: Interval | None
    same_top: float
    same_top_ci95: Interval | None
    positions: int


def compare_windows(
    original: Sequence[Sequence[TokenLogprobs]], variant: Sequence[Sequence[TokenLogprobs]]
) -> ServedDivergence | None:
    """Of windows of the same text; None where there is no position that both told."""
    kls, tops, positions = [], [], 0
    for first, second in zip(original, variant, strict=True):
        pairs = [(p, q) for p, q in zip(first, second, strict=True) if p and q]
        if pairs:
            kls.append(fmean(position_divergence(p, q) for p, q in pairs))
            tops.append(fmean(most_probable_token(p) == most_probable_token(q) for p, q in pairs))
            positions += len(pairs)
    if not positions:
        return None
    return ServedDivergence(fmean(kls), mean_ci95(kls), fmean(tops), mean_interval(tops), positions)


def position_divergence(original: TokenLogprobs, variant: TokenLogprobs) -> float:
    """KL over the tokens that both told and one bucket for all others, nats."""
    shared = original.keys() & variant.keys()
    p, q = ([math.exp(each[token]) for token in shared] for each in (original, variant))
    rest = [max(LEAST_PROBABILITY, 1 - math.fsum(each)) for each in (p, q)]
    sums = math.fsum(p) + rest[0], math.fsum(q) + rest[1]
    told = [(a / sums[0], b / sums[1]) for a, b in [*zip(p, q, strict=True), (rest[0], rest[1])]]
    return max(0.0, math.fsum(a * math.log(a / b) for a, b in told if a > 0))


def most_probable_token(told: TokenLogprobs) -> str:
    """The most probable token; of several the first by its id, so that a tie is the same tie twice."""
    return min(told, key=lambda token: (-told[token], token))


def parse_prompt_logprobs(choice: Mapping[str, Any]) -> list[TokenLogprobs]:
    """`prompt_logprobs` of one choice of a completion: a mapping a position, empty for the first. Raises ValueError
    where it has another form."""
    found = choice.get("prompt_logprobs")
    if not isinstance(found, list):
        raise ValueError("no prompt_logprobs")
    try:
        return [{token: float(each["logprob"]) for token, each in (position or {}).items()} for position in found]
    except (AttributeError, KeyError, TypeError):
        raise ValueError("prompt_logprobs of another form") from None
