"""Greedy answers of the served variants to the same prompts, against the baseline's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.domain.evaluation import Variant

GREEDY_PROMPTS = 12


def compare_answers(baseline: Variant, answers: dict[int, list[str]]) -> dict[int, dict[str, Any]]:
    """`greedy_match` and `first_divergence_share` by variant index; empty where the baseline's tokenizer is not at hand."""
    from backend.evaluate import quality

    if baseline.model_path is None or 0 not in answers:
        return {}
    tokenizer = Path(baseline.model_path)
    found = {}
    for index, texts in answers.items():
        match = quality.greedy_match_texts(tokenizer, answers[0], texts)
        found[index] = {
            "greedy_match": match["greedy_match"],
            "first_divergence_share": match["first_divergence_share"],
        }
    return found
