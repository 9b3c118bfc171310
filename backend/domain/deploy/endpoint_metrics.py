"""Requests and errors of an endpoint, by CloudWatch's metrics in the namespace AWS/SageMaker.

Pure: nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from backend.domain.deploy.deployment import VARIANT
from backend.domain.frozen import Frozen

HOUR = timedelta(hours=1)
PERIOD_S = 3600
"""CloudWatch has minutes for 15 days, five minutes for 63 and hours for 455 only."""
COMPLETE = "Complete"


class Metric(NamedTuple):
    name: str
    statistic: str


METRICS = {
    "requests": Metric("Invocations", "Sum"),
    "errors": Metric("Invocation5XXErrors", "Sum"),
    "latency": Metric("ModelLatency", "p95"),
}
COUNTED = ("requests", "errors")


class Counts(Frozen):
    """Requests that reached the container, and those that it answered with a status of 500 or more."""

    requests: int
    errors: int


class Traffic(Frozen):
    """The requests of an endpoint since it was made, and in the last hour."""

    since: Counts
    hour: Counts
    p95_ms: float | None
    """95% of the hour's answers came whole from the container within these milliseconds; None where there were none."""


def query(endpoint: str, since: datetime, until: datetime, named: Iterable[str] = METRICS) -> dict[str, Any]:
    """Return the parameters of `get_metric_data` for the named METRICS, for one minute at least."""
    end = until.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    begin = min(since.astimezone(UTC).replace(second=0, microsecond=0), end - timedelta(minutes=1))
    where = [{"Name": "EndpointName", "Value": endpoint}, {"Name": "VariantName", "Value": VARIANT}]
    return {
        "StartTime": begin,
        "EndTime": end,
        "MetricDataQueries": [{"Id": metric, "MetricStat": _statistic(METRICS[metric], where)} for metric in named],
    }


def _statistic(metric: Metric, where: list[dict[str, str]]) -> dict[str, Any]:
    named = {"Namespace": "AWS/SageMaker", "MetricName": metric.name, "Dimensions": where}
    return {"Metric": named, "Period": PERIOD_S, "Stat": metric.statistic}


def values(pages: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the values by the ids of the queries. Raises ValueError where CloudWatch could not answer one."""
    series: dict[str, list[float]] = {}
    for page in pages:
        for result in page["MetricDataResults"]:
            if result.get("StatusCode", COMPLETE) not in {COMPLETE, "PartialData"}:
                raise ValueError(f"{result['Id']} is {result['StatusCode']}")
            series.setdefault(result["Id"], []).extend(result.get("Values", ()))
    return series


def traffic(since: Mapping[str, list[float]], hour: Mapping[str, list[float]]) -> Traffic:
    """Return the traffic from `values` of both. Where the hour came in two pieces, the slower latency counts."""
    slowest = max(hour.get("latency", ()), default=None)
    return Traffic(since=_counts(since), hour=_counts(hour), p95_ms=None if slowest is None else slowest / 1000)


def _counts(series: Mapping[str, list[float]]) -> Counts:
    """Return the sums. No value is no request: CloudWatch stores none for a minute without."""
    requests, errors = (round(sum(series.get(name, ()))) for name in COUNTED)
    return Counts(requests=requests, errors=errors)
