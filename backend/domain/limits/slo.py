"""Finds the best measured level whose tail latencies are within an SLO. Pure.

Only measured levels count: nothing is interpolated between them or extrapolated beyond the last.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.evaluation.document import Evaluation, Level, VariantResult
from backend.domain.evaluation.soundness import is_sound
from backend.domain.frozen import Frozen
from backend.domain.limits.latency_limit import USUAL_PERCENTILE, LatencyLimit, Percentile, latency_percentile


class Slo(Frozen):
    """Upper limits for one percentile of the latencies of a level, in milliseconds; None is no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    percentile: Percentile = USUAL_PERCENTILE

    @property
    def latency_limits(self) -> list[LatencyLimit]:
        """The limits that are set; each holds for the percentile of a level."""
        limits = {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms}
        return [LatencyLimit(metric, most_ms) for metric, most_ms in limits.items() if most_ms is not None]

    def meets(self, level: Level) -> bool:
        """Tell whether every limited latency of the level is within its limit."""
        return all(limit.allows_level(level, self.percentile) for limit in self.latency_limits)


class BestLevel(Frozen):
    """A variant's level with the most output tokens/s within the SLO; None where no measured level is.

    Where no answer came with a token count, the level with the most requests/s.
    """

    variant: str
    level: Level | None


def best_levels(evaluation: Evaluation, slo: Slo) -> list[BestLevel]:
    """Return one for each variant, in the evaluation's order. Levels that are not sound do not count."""
    return [BestLevel(variant=result.name, level=_best_level(result, slo)) for result in evaluation.variants]


def _best_level(result: VariantResult, slo: Slo) -> Level | None:
    levels = [level for level in result.levels if is_sound(level) and slo.meets(level)]
    return max(levels, key=throughput_order, default=None)


def throughput_order(level: Level) -> tuple[bool, float, float]:
    """Sort key: by output tokens/s; levels without a token count come first, by requests/s."""
    tokens = level.output_tokens_per_s
    return tokens is not None, tokens or 0.0, level.requests_per_s or 0.0


def highest_latency(
    evaluations: Sequence[Evaluation], metric: str, percentile: Percentile = USUAL_PERCENTILE
) -> float | None:
    """Return the largest such percentile of `ttft_ms` or `tpot_ms` in milliseconds; None where it was not measured."""
    levels = [level for evaluation in evaluations for result in evaluation.variants for level in result.levels]
    percentiles = [latency_percentile(level, metric, percentile) for level in levels]
    return max((latency for latency in percentiles if latency is not None), default=None)
