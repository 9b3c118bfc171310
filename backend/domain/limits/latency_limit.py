"""One upper limit for a latency: the form that SLOs, limits of single requests and objectives of a search share.
Pure."""

from __future__ import annotations

from typing import NamedTuple

from backend.domain.evaluation.document import Level, Summary

METRICS_BY_NAME = {
    "ttft": "ttft_ms",
    "tpot": "tpot_ms",
    "chunk_gap": "chunk_gap_ms",
    "client_latency": "client_latency_ms",
    "content_latency": "content_latency_ms",
}
"""The name of a latency as a person writes it, and its field in a level."""
STATISTICS = ("mean", "p50", "p90", "p95", "p99")


class LatencyLimit(NamedTuple):
    """`metric` is a field of a level such as `ttft_ms`, `most_ms` the limit in milliseconds."""

    metric: str
    most_ms: float

    def allows(self, latency_ms: float | None) -> bool:
        """Tell whether the latency is within the limit. A latency that was not measured never is."""
        return latency_ms is not None and latency_ms <= self.most_ms

    def allows_p95(self, level: Level) -> bool:
        """Tell whether the level's 95th percentile is within the limit."""
        summary: Summary | None = getattr(level, self.metric)
        return self.allows(summary.p95 if summary else None)
