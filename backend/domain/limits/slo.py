"""What a variant gives while it keeps its promises: the best measured level whose tail latencies stay within limits.
Pure.

Only levels that were measured count: nothing is interpolated between them, and nothing is read beyond the last.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.evaluation.document import Evaluation, Level, Summary, VariantResult
from backend.domain.evaluation.soundness import is_sound
from backend.domain.frozen import Frozen


class Slo(Frozen):
    """Upper limits of 95th percentiles, in milliseconds; None is no limit."""

    ttft_p95_ms: float | None = None
    tpot_p95_ms: float | None = None

    def meets(self, level: Level) -> bool:
        """Whether both stay within their limit. A latency that was not measured keeps no promise."""
        return _within(level.ttft_ms, self.ttft_p95_ms) and _within(level.tpot_ms, self.tpot_p95_ms)


class BestLevel(Frozen):
    """The level of a variant with the highest output tokens/s within the limits, where no answer told its tokens the
    one with the most requests/s; None where no measured level is."""

    variant: str
    level: Level | None


def best_levels(evaluation: Evaluation, slo: Slo) -> list[BestLevel]:
    """One a variant, in the evaluation's order. Levels that the client held back or that failed often do not count."""
    return [BestLevel(variant=result.name, level=_best(result, slo)) for result in evaluation.variants]


def _best(result: VariantResult, slo: Slo) -> Level | None:
    levels = [level for level in result.levels if is_sound(level) and slo.meets(level)]
    return max(levels, key=throughput_order, default=None)


def throughput_order(level: Level) -> tuple[bool, float, float]:
    """By output tokens/s, those without a token count below and by requests/s."""
    tokens = level.output_tokens_per_s
    return tokens is not None, tokens or 0.0, level.requests_per_s or 0.0


def highest_p95(evaluations: Sequence[Evaluation], latency: str) -> float | None:
    """The largest p95 of `ttft_ms` or `tpot_ms` in any of them, in milliseconds; None where it was not measured."""
    summaries: list[Summary | None] = [
        getattr(level, latency)
        for evaluation in evaluations
        for result in evaluation.variants
        for level in result.levels
    ]
    return max((summary.p95 for summary in summaries if summary), default=None)


def _within(summary: Summary | None, limit: float | None) -> bool:
    return limit is None or (summary is not None and summary.p95 <= limit)
