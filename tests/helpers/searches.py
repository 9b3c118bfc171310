"""Searches for the best setting, with tries."""

from __future__ import annotations

from typing import Any

from backend.domain.evaluation.document import EvaluateOptions, Evaluation, Level
from backend.domain.evaluation.outcome import SloCheck
from backend.domain.limits.objective import ObjectiveVerdict
from tests.simulated import evaluation, level, quality, result

OBJECTIVES = ("ttft_p95<=300ms",)


def tried(
    streams: int, verdict: ObjectiveVerdict, *marks: str, objectives: tuple[str, ...] = OBJECTIVES, **more: Any
) -> Level:
    check = SloCheck(
        objectives=objectives,
        verdict=verdict,
        shares=(0.99,),
        intervals=((0.96, 0.998),),
        highest="highest" in marks,
        knee="knee" in marks,
    )
    return level(streams, slo=check, **more)


def search(*variants: list[Level]) -> Evaluation:
    results = [result(f"v{number}", levels, quality(0.0004)) for number, levels in enumerate(variants)]
    options = EvaluateOptions(sweep=OBJECTIVES, concurrency=(1,))
    return evaluation().model_copy(update={"variants": results, "comparison": [], "options": options})
