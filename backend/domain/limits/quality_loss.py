"""Grades what a variant loses in output quality, and refuses a loss beyond the quality floor. Pure.

The loss is the larger of the mean KL divergence and the rise of the log-perplexity, both in nats per token: a model may
differ from the original without losing on the text, and may lose on it where KL, which weighs by the original's own
choices, is small.

Grades follow what llama.cpp measured of Llama 3 8B (its pull request 6936; perplexity against fp16): q6_K 1.003, q4_K_M
1.028, q2_K 1.565. People serve the first two without noticing and give up the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from backend.domain.evaluation.document import VariantResult

LossGrade = Literal["none", "hardly", "small", "clear", "ruined"]
QUALITY_FLOOR = 0.4
"""Nats per token: a perplexity 1.49 times the original's. The default of the setting `quality_floor`."""
MOST_AGREEING = 0.9
"""Share of tokens of greedy answers from which a change is no longer worth a word beside the loss on the text."""
GRADES: tuple[tuple[float, LossGrade], ...] = ((1e-4, "none"), (0.03, "hardly"), (0.1, "small"))
"""The largest loss in nats of each grade; a larger one is `clear`, beyond the floor `ruined`."""


def loss_nats(kl_mean: float | None, before: float | None, after: float | None) -> float | None:
    """Return the larger of the mean KL divergence and ln(after / before) of the perplexities, in nats per token.

    None where neither was scored.
    """
    losses = [] if kl_mean is None else [kl_mean]
    if before and after:
        losses.append(math.log(after / before))
    return max(losses, default=None)


def known_loss(result: VariantResult) -> float | None:
    """Return the mean KL divergence that counts against a floor; None where it was not measured. Scored weights say
    nothing of a key-value cache in fewer bits, so there it must be that as served."""
    quality, cache = result.quality, result.variant.serving.kv_cache_dtype
    if quality is None or (cache != "auto" and quality.served_kl is None):
        return None
    return quality.known_kl


def loss_grade(loss: float) -> LossGrade:
    """Return the grade of a loss in nats per token."""
    if loss > QUALITY_FLOOR:
        return "ruined"
    return next((grade for most, grade in GRADES if loss <= most), "clear")


def grade_limit(grade: LossGrade) -> float:
    """Return the largest loss of a grade in nats per token; of `ruined` the loss that it is beyond."""
    return next((most for most, name in GRADES if name == grade), QUALITY_FLOOR)


def answers_change(greedy_match: float | None, interval: tuple[float, float] | None, greedy_self: float | None) -> bool:
    """Tell whether greedy answers clearly change: fewer than MOST_AGREEING of their tokens agree with the original's,
    and fewer than the original's own second answers.

    One other token changes all that follow, so answers may change where the loss on a text is hardly measurable.
    """
    if greedy_match is None:
        return False
    highest = interval[1] if interval else greedy_match
    return greedy_match < MOST_AGREEING and highest < (1.0 if greedy_self is None else greedy_self)


def floor_problem(quality: Mapping[str, Any], floor: float | None) -> str | None:
    """Say in one sentence that an artifact's loss is beyond the floor; None where it is not.

    `quality` has `perplexity_before`, `perplexity_after` and `kl_mean`. A `floor` of 0 means no floor, None the
    default.
    """
    # 1. The loss, against the floor.
    floor = QUALITY_FLOOR if floor is None else floor
    before, after, kl = (quality.get(name) for name in ("perplexity_before", "perplexity_after", "kl_mean"))
    loss = loss_nats(kl, before, after)
    if not floor or loss is None or loss <= floor:
        return None
    # 2. What the person reads.
    return (
        f"The result is ruined: perplexity goes from {before:.1f} to {after:.1f}, mean KL divergence is {kl:.2f} nats "
        f"per token, and the quality floor is {floor:g}. Use more bits, less sparsity or `recover`."
    )
