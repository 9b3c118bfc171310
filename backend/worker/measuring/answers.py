"""Greedy answers of the served variants to the same prompts, against the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.domain.evaluation.answers import agreement, answered, pooled_interval
from backend.domain.evaluation.document import Variant

GREEDY_PROMPTS = 12
"""At the most; of a workload of fewer lines each is asked once, for a second time would say nothing new."""

FIGURES = frozenset({"exact_match", "token_f1", "greedy_match", "first_divergence_share"})
Answers = Sequence[str | None]
"""By prompt. None where the request failed, which is not the same as an answer without words."""


def compare_answers(baseline: Variant, answers: dict[int, Answers]) -> dict[int, dict[str, Any]]:
    """The agreement figures of `Quality` by variant index; those over tokens only where the baseline's tokenizer is at hand.

    Without a pair that both answered there are no figures, only that none of so many were compared. The baseline agrees with
    itself: a figure for gates and charts, but nothing was compared, so it has neither a number of answers nor intervals.
    """
    if 0 not in answers:
        return {}
    tokenizer = Path(baseline.model_path) if baseline.model_path else None
    found = {index: _against(answers[0], texts, tokenizer) for index, texts in answers.items()}
    return found | {0: {name: value for name, value in found[0].items() if name in FIGURES}}


def _against(baseline: Answers, texts: Answers, tokenizer: Path | None) -> dict[str, Any]:
    pairs = answered(baseline, texts)
    found = agreement(pairs)
    counts = {"answers": len(pairs), "answers_asked": len(texts)}
    return {**counts, **found._asdict(), **_tokens(tokenizer, pairs)} if found else counts


def _tokens(tokenizer: Path | None, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    if tokenizer is None:
        return {}
    from backend.evaluate.quality import quality

    first, second = (quality.tokenize(tokenizer, texts) for texts in zip(*pairs, strict=True))
    match = quality.greedy_match(first, second)
    share, lengths = match["greedy_match"], [min(len(a), len(b)) for a, b in zip(first, second, strict=True)]
    return {
        "greedy_match": share,
        "greedy_ci95": None if share is None else pooled_interval(share, lengths),
        "first_divergence_share": match["first_divergence_share"],
    }
