"""Loss of output quality in words: how often the top token differs, and how large the loss is.

Thresholds and their sources: `domain.limits.quality_loss`, docs/measuring.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.domain.evaluation.document import Quality
from backend.domain.limits.quality_loss import LossGrade, loss_grade, loss_nats

GRADES: dict[LossGrade, str] = {
    "none": "no measurable loss",
    "hardly": "loss hardly measurable",
    "small": "a small loss",
    "clear": "a clear loss",
    "ruined": "ruined: its answers are no longer the original's",
}


def words(quality: Quality | None) -> str | None:
    """`top token differs at 7% of positions; loss hardly measurable`; None if nothing was scored."""
    if quality is None or quality.scored == "unavailable":
        return None
    if quality.scored == "original":
        return "the original's weights"
    return _words(loss_nats(quality.kl_mean, quality.perplexity_original, quality.perplexity), quality.same_top)


def manifest_words(quality: Mapping[str, Any]) -> str | None:
    """Return the same for the scores in an artifact's manifest."""
    lost = loss_nats(quality.get("kl_mean"), quality.get("perplexity_before"), quality.get("perplexity_after"))
    return _words(lost, quality.get("same_top"))


def _words(lost: float | None, same: float | None) -> str | None:
    if lost is None:
        return None
    return "; ".join([*([] if same is None else [changes(same)]), GRADES[loss_grade(lost)]])


def changes(same: float) -> str:
    """`top token differs at 7% of positions`: how often another token is most probable, with the text as context."""
    if same >= 1:
        return "top token differs nowhere"
    return f"top token differs at {_percent(1 - same)} of positions"


def _percent(share: float) -> str:
    """`7%`; below 1% with one significant digit: `0.04%`."""
    return f"{share:.0%}" if share >= 0.01 else f"{share * 100:.1g}%"
