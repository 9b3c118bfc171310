"""Greedy answers of the served variants to the same prompts, against the baseline's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.domain.agreement import agreement
from backend.domain.evaluation import Variant

GREEDY_PROMPTS = 12


def compare_answers(baseline: Variant, answers: dict[int, list[str]]) -> dict[int, dict[str, Any]]:
    """The agreement figures of `Quality` by variant index; those over tokens only where the baseline's tokenizer is at hand."""
    if 0 not in answers:
        return {}
    tokenizer = Path(baseline.model_path) if baseline.model_path else None
    return {index: {**_words(answers[0], texts), **_tokens(tokenizer, answers[0], texts)} for index, texts in answers.items()}


def _words(baseline: list[str], texts: list[str]) -> dict[str, Any]:
    found = agreement(baseline, texts)
    return {"exact_match": found.exact_match, "token_f1": found.token_f1} if found else {}


def _tokens(tokenizer: Path | None, baseline: list[str], texts: list[str]) -> dict[str, Any]:
    from backend.evaluate import quality

    if tokenizer is None:
        return {}
    match = quality.greedy_match_texts(tokenizer, baseline, texts)
    return {name: match[name] for name in ("greedy_match", "first_divergence_share")}
