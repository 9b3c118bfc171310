"""What a variant loses in output quality: one figure, its grade, and the floor below which nobody should serve it
unasked. Pure.

The figure is the larger of the mean KL divergence and the rise of the log-perplexity, both in nats a token: a model may
stray from the original without losing on the text, and lose on it where KL, which weighs by the original's own choices,
is small.

Grades, after what llama.cpp measured of Llama 3 8B (its pull request 6936; perplexity against fp16): q6_K 1.003, q4_K_M
1.028, q2_K 1.565. People serve the first two without noticing and give up the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

LossGrade = Literal["none", "hardly", "small", "clear", "ruined"]
QUALITY_FLOOR = 0.4
"""Nats a token: a perplexity 1.49 times the original's. The default of the setting `quality_floor`."""
GRADES: tuple[tuple[float, LossGrade], ...] = ((1e-4, "none"), (0.03, "hardly"), (0.1, "small"))
"""Up to so many nats; what is more is clear, beyond the floor ruined."""


def loss_nats(kl_mean: float | None, before: float | None, after: float | None) -> float | None:
    """The larger of the mean KL divergence and ln(after / before) of the perplexities; None where neither was
    scored."""
    known = [] if kl_mean is None else [kl_mean]
    if before and after:
        known.append(math.log(after / before))
    return max(known, default=None)


def loss_grade(lost: float) -> LossGrade:
    if lost > QUALITY_FLOOR:
        return "ruined"
    return next((name for most, name in GRADES if lost <= most), "clear")


def floor_problem(quality: Mapping[str, Any], floor: float | None) -> str | None:
    """One sentence where an artifact's scores (`perplexity_before`, `perplexity_after`, `kl_mean`) miss the floor: 0 is
    none, None the default."""
    floor = QUALITY_FLOOR if floor is None else floor
    before, after, kl = (quality.get(name) for name in ("perplexity_before", "perplexity_after", "kl_mean"))
    lost = loss_nats(kl, before, after)
    if not floor or lost is None or lost <= floor:
        return None
    return (
        f"The result is ruined: perplexity goes from {before:.1f} to {after:.1f}, mean KL divergence is {kl:.2f} nats a token, "
        f"and the quality floor is {floor:g}. Use more bits, less sparsity or `recover`."
    )
