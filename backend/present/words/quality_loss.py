"""Loss of output quality in words: how often the top token is the same, and how large the loss is.

Thresholds and their sources: `domain.limits.quality_loss`, docs/measuring.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from backend.domain.evaluation.document import Quality
from backend.domain.figures import figure
from backend.domain.limits.quality_loss import LossGrade, answers_change, grade_limit, loss_grade, loss_nats

GRADES: dict[LossGrade, str] = {
    "none": "no measurable loss",
    "hardly": "loss hardly measurable",
    "small": "a small loss",
    "clear": "a clear loss",
    "ruined": "ruined: it no longer answers like the original",
}

MILD: tuple[LossGrade, ...] = ("none", "hardly", "small")
"""Grades beside which changed answers would contradict the words."""


def words(quality: Quality | None) -> str | None:
    """`same top token at 93% of positions; loss hardly measurable, 0.026 of at most 0.03 nats per token`; None if
    nothing was scored.

    If the served answers change all the same, the loss is said to be that on the text, and the share that agrees
    follows.
    """
    if quality is None or (quality.scored == "unavailable" and quality.known_kl is None):
        return None
    if quality.scored == "original":
        return "original weights"
    lost = loss_nats(quality.known_kl, quality.perplexity_original, quality.perplexity)
    text = _words(lost, quality.known_same_top)
    is_hidden = lost is not None and loss_grade(lost) in MILD
    if text and is_hidden and answers_change(quality.greedy_match, quality.greedy_ci95, quality.greedy_self):
        return f"{text} on the text; greedy answers change: {_percent(quality.greedy_match or 0.0)} of tokens agree"
    return text


def manifest_words(quality: Mapping[str, Any]) -> str | None:
    """Return the same for the scores in an artifact's manifest."""
    lost = loss_nats(quality.get("kl_mean"), quality.get("perplexity_before"), quality.get("perplexity_after"))
    return _words(lost, quality.get("same_top"))


def _words(lost: float | None, same: float | None) -> str | None:
    if lost is None:
        return None
    return "; ".join([*([] if same is None else [same_top(same)]), grade_words(lost)])


def grade_words(lost: float) -> str:
    """Return the grade of a loss in nats per token, with the loss and the limit of its grade:
    `loss hardly measurable, 0.026 of at most 0.03 nats per token`."""
    grade = loss_grade(lost)
    side = "and above" if grade == "ruined" else "of at most"
    return f"{GRADES[grade]}, {figure(lost, 2)} {side} {grade_limit(grade):g} nats per token"


def scale_sentence() -> str:
    """Return the figure that the words grade, and the limit of each word."""
    names = {grade: words.partition(":")[0] for grade, words in GRADES.items()}
    limits = [f"{name} up to {grade_limit(grade):g}" for grade, name in names.items() if grade != "ruined"]
    return (
        "The words grade the larger of mean KL divergence and ln(perplexity / the original's), in nats per token: "
        f"{', '.join(limits)}, beyond it {names['ruined']}."
    )


def same_top(share: float) -> str:
    """`same top token at 93% of positions`: how often the original's most probable token is the most probable one, with
    the text as context."""
    if share >= 1:
        return "same top token at every position"
    return f"same top token at {_percent(share)} of positions"


def _percent(share: float) -> str:
    """`93%`; above 99% as many digits as show that it is not all: `99.96%`."""
    lost = round(100 * (1 - share), 9)
    decimals = 0 if lost >= 1 else -math.floor(math.log10(lost))
    return f"{100 * share:.{decimals}f}%"
