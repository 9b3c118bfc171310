"""Compares a served variant's next-token probabilities with the served original's, as far as servers report them. Pure.

A server reports the most probable tokens at each position of a prompt with their log-probabilities (vLLM's
`prompt_logprobs`). With S the tokens that both reported, and all others in one bucket, the KL divergence over S and the
bucket is at most that over the whole vocabulary (the data processing inequality; Cover and Thomas, Elements of
Information Theory, 2.8): the result is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from backend.domain.evaluation.answer_agreement import Interval, mean_interval
from backend.domain.maths.intervals import mean_ci95

TokenLogprobs = Mapping[str, float]
"""Token id -> log-probability at one position; the token of the text itself is among them."""
LEAST_PROBABILITY = 1e-9
"""The bucket has at least this probability: reported figures are rounded."""


class ServedDivergence(NamedTuple):
    """Means over positions, with 95% intervals over windows (None for fewer than two)."""

    kl: float
    """Nats per token; a lower bound."""
    kl_ci95: Interval | None
    same_top: float
    same_top_ci95: Interval | None
    positions: int


def compare_windows(
    original: Sequence[Sequence[TokenLogprobs]], variant: Sequence[Sequence[TokenLogprobs]]
) -> ServedDivergence | None:
    """Compare windows of the same text; None where both servers report no common position."""
    # 1. Means of each window, over positions that both servers report.
    divergences: list[float] = []
    same_tops: list[float] = []
    positions = 0
    for original_window, variant_window in zip(original, variant, strict=True):
        pairs = [(p, q) for p, q in zip(original_window, variant_window, strict=True) if p and q]
        if pairs:
            divergences.append(fmean(position_divergence(p, q) for p, q in pairs))
            same_tops.append(fmean(most_probable_token(p) == most_probable_token(q) for p, q in pairs))
            positions += len(pairs)
    # 2. Means over windows, which are independent texts.
    if not positions:
        return None
    return ServedDivergence(
        fmean(divergences), mean_ci95(divergences), fmean(same_tops), mean_interval(same_tops), positions
    )


def position_divergence(original: TokenLogprobs, variant: TokenLogprobs) -> float:
    """Return the KL divergence in nats over the tokens that both reported and one bucket for all others."""
    # 1. Probabilities of the shared tokens, the bucket last.
    shared = original.keys() & variant.keys()
    p = [math.exp(original[token]) for token in shared]
    q = [math.exp(variant[token]) for token in shared]
    p.append(max(LEAST_PROBABILITY, 1 - math.fsum(p)))
    q.append(max(LEAST_PROBABILITY, 1 - math.fsum(q)))
    # 2. Both add up to 1 again, after the bucket was raised.
    p_total, q_total = math.fsum(p[:-1]) + p[-1], math.fsum(q[:-1]) + q[-1]
    pairs = [(a / p_total, b / q_total) for a, b in zip(p, q, strict=True)]
    return max(0.0, math.fsum(a * math.log(a / b) for a, b in pairs if a > 0))


def most_probable_token(logprobs: TokenLogprobs) -> str:
    """Return the most probable token; of equally probable ones the first by id, so that ties agree."""
    return min(logprobs, key=lambda token: (-logprobs[token], token))


def parse_prompt_logprobs(choice: Mapping[str, Any]) -> list[TokenLogprobs]:
    """Parse `prompt_logprobs` of one choice of a completion: a mapping for each position, empty for the first.

    Raises ValueError where it has another form.
    """
    positions = choice.get("prompt_logprobs")
    if not isinstance(positions, list):
        raise ValueError("no prompt_logprobs")
    try:
        return [{token: float(entry["logprob"]) for token, entry in (row or {}).items()} for row in positions]
    except (AttributeError, KeyError, TypeError):
        raise ValueError("prompt_logprobs of another form") from None


def parse_token_probabilities(reply: Mapping[str, Any]) -> TokenLogprobs:
    """Parse the most probable first tokens of a completion by llama.cpp's own route (`n_probs`).

    Empty where the reply lists none, as of a token that is a part of a character: the server reports it with the next.
    Raises ValueError where it has another form.
    """
    if not reply.get("completion_probabilities"):
        return {}
    try:
        first = reply["completion_probabilities"][0]
        return {str(entry["id"]): float(entry["logprob"]) for entry in first["top_logprobs"]}
    except (LookupError, TypeError):
        raise ValueError("completion_probabilities of another form") from None
