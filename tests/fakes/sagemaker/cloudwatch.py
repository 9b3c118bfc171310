"""CloudWatch: alarms on the number of invocations, which go off when nothing was asked for as long as they say; and
metrics.

Both read the table `invocations`: of each endpoint when, microseconds of the model, and whether its status was 500 or
more.
"""

from __future__ import annotations

from datetime import datetime
from math import ceil
from typing import Any

from tests.fakes.sagemaker.account import Account, Refused, operation
from tests.fakes.sagemaker.shapes import moment

DAY_S = 86400
FINEST_S = ((63 * DAY_S, 3600), (15 * DAY_S, 300), (0, 60))
"""From that age on, the least period that is kept."""
Invocations = list[tuple[float, float, bool]]


@operation("cloudwatch", "PutMetricAlarm")
def put_alarm(account: Account, request: dict[str, Any]) -> None:
    if request["Period"] * request["EvaluationPeriods"] > DAY_S:
        raise Refused("ValidationError", "Metrics cannot be checked across more than a day")
    account.tables["alarms"][request["AlarmName"]] = {**request, "since": account.clock.now}


@operation("cloudwatch", "DescribeAlarms")
def describe_alarms(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    value = request.get("AlarmNamePrefix", "")
    rows = [row for name, row in sorted(account.tables["alarms"].items()) if name.startswith(value)]
    return {"MetricAlarms": [{"AlarmName": row["AlarmName"], "StateValue": _state(account, row)} for row in rows]}


def _state(account: Account, row: dict[str, Any]) -> str:
    name = next(each["Value"] for each in row["Dimensions"] if each["Name"] == "EndpointName")
    quiet_since = max(row["since"], max((at for at, _, _ in _invocations(account, name)), default=0.0))
    return "ALARM" if account.clock.now - quiet_since >= row["Period"] * row["EvaluationPeriods"] else "OK"


def _invocations(account: Account, name: str) -> Invocations:
    value: Invocations = account.tables["invocations"].get(name, [])
    return value


@operation("cloudwatch", "DeleteAlarms")
def delete_alarms(account: Account, request: dict[str, Any]) -> None:
    for name in request["AlarmNames"]:
        account.tables["alarms"].pop(name, None)


@operation("cloudwatch", "GetMetricData")
def metric_data(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    """One value a page, as few as AWS may give; a period without an invocation has none."""
    begin, end = _seconds(request["StartTime"]), _seconds(request["EndTime"])
    if begin >= end:
        raise Refused("ValidationError", "The parameter StartTime must be less than the parameter EndTime.")
    results = []
    for query in request["MetricDataQueries"]:
        requested = query["MetricStat"]
        finest = next(period for age, period in FINEST_S if account.clock.now - begin >= age or not age)
        if requested["Period"] % finest:
            raise Refused("ValidationError", f"The period must be a multiple of {finest}.")
        results += [(query["Id"], *value) for value in _values(account, requested, begin, end)]
    first = int(request.get("NextToken") or 0)
    more = str(first + 1) if first + 1 < len(results) else None
    empty = {
        each["Id"]: {"Id": each["Id"], "Timestamps": [], "Values": [], "StatusCode": "Complete"}
        for each in request["MetricDataQueries"]
    }
    for name, at, value in results[first : first + 1]:
        empty[name] |= {
            "Timestamps": [moment(at)],
            "Values": [float(value)],
            "StatusCode": "PartialData" if more else "Complete",
        }
    return {"MetricDataResults": list(empty.values()), "NextToken": more}


def _seconds(moment_or_number: Any) -> float:
    return moment_or_number.timestamp() if isinstance(moment_or_number, datetime) else float(moment_or_number)


def _values(account: Account, options: dict[str, Any], begin: float, end: float) -> list[tuple[float, float]]:
    name = next(each["Value"] for each in options["Metric"]["Dimensions"] if each["Name"] == "EndpointName")
    periods: dict[int, Invocations] = {}
    for each in _invocations(account, name):
        if begin <= each[0] < end:
            periods.setdefault(int((each[0] - begin) // options["Period"]), []).append(each)
    values = {
        number: _statistic(rows, options["Metric"]["MetricName"], options["Stat"]) for number, rows in periods.items()
    }
    return [(begin + number * options["Period"], value) for number, value in values.items() if value is not None]


def _statistic(rows: Invocations, metric: str, statistic: str) -> float | None:
    match metric, statistic:
        case "Invocations", "Sum":
            return len(rows)
        case "Invocation5XXErrors", "Sum":
            return sum(failed for _, _, failed in rows)
        case "ModelLatency", "p95":
            ordered = sorted(microseconds for _, microseconds, _ in rows)
            return ordered[ceil(0.95 * len(ordered)) - 1]
    return None
