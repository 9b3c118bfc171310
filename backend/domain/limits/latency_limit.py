"""One upper limit for a latency: the form that SLOs, limits of single requests and objectives of a search share.
Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from backend.domain.evaluation.document import Level, Summary

METRICS_BY_NAME = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "chunk_gap": "chunk_gap_ms",
    "client_latency": "client_latency_ms",
    "content_latency": "content_latency_ms",
}
"""The name of a latency as a person writes it, and its field in a level."""
Percentile = Literal["p50", "p90", "p95", "p99"]
"""A percentile that every level has of each latency."""
PERCENTILES: tuple[Percentile, ...] = get_args(Percentile)
USUAL_PERCENTILE: Percentile = "p95"
"""The percentile of limits for which nobody chose one."""
STATISTICS = ("mean", *PERCENTILES)


class LatencyLimit(NamedTuple):
    """`metric` is a field of a level such as `ttft_ms`, `most_ms` the limit in milliseconds."""

    metric: str
    most_ms: float

    def allows(self, latency_ms: float | None) -> bool:
        """Tell whether the latency is within the limit. A latency that was not measured never is."""
        return latency_ms is not None and latency_ms <= self.most_ms

    def allows_level(self, level: Level, percentile: Percentile) -> bool:
        """Tell whether that percentile of the level is within the limit."""
        return self.allows(latency_percentile(level, self.metric, percentile))


def latency_percentile(level: Level, metric: str, percentile: Percentile) -> float | None:
    """Return a percentile of a level's latency in milliseconds; None where it was not measured."""
    summary: Summary | None = getattr(level, metric)
    return None if summary is None else float(getattr(summary, percentile))
