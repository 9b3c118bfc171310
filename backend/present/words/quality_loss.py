"""What a variant loses in output quality, in words: how often the next token changes, and how grave that is.

The thresholds and where they are from: `domain.limits.loss`, docs/measuring.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.domain.evaluation.document import Quality
from backend.domain.limits.quality_loss import LossGrade, loss_grade, loss_nats

GRADES: dict[LossGrade, str] = {
    "none": "no loss to be measured",
    "hardly": "loss hardly measurable",
    "small": "a small loss",
    "clear": "a clear loss",
    "ruined": "ruined: its answers are no longer the original's",
}


def words(quality: Quality | None) -> str | None:
    """`answers change in 1 of 14 places; loss hardly measurable`; None where nothing was scored."""
    if quality is None or quality.scored == "unavailable":
        return None
    if quality.scored == "original":
        return "the original's weights"
    return _words(loss_nats(quality.kl_mean, quality.perplexity_original, quality.perplexity), quality.same_top)


def of_manifest(quality: Mapping[str, Any]) -> str | None:
    """The same of an artifact's scores."""
    lost = loss_nats(quality.get("kl_mean"), quality.get("perplexity_before"), quality.get("perplexity_after"))
    return _words(lost, quality.get("same_top"))


def _words(lost: float | None, same: float | None) -> str | None:
    if lost is None:
        return None
    return "; ".join([*([] if same is None else [changes(same)]), GRADES[loss_grade(lost)]])


def changes(same: float) -> str:
    """`answers change in 1 of 14 places`: how often the most probable token is another, the text itself as context."""
    if same >= 1:
        return "answers change nowhere"
    places = 1 / (1 - same)
    if places < 2:
        return f"answers change in {1 - same:.0%} of places"
    return f"answers change in 1 of {places:,.0f} places"
