"""CloudWatch's alarms on the number of invocations: one goes off when nothing was asked for as long as it says."""

from __future__ import annotations

from typing import Any

from tests.fakes.sagemaker.account import Account, Refused, operation


@operation("cloudwatch", "PutMetricAlarm")
def put_alarm(account: Account, request: dict[str, Any]) -> None:
    if request["Period"] * request["EvaluationPeriods"] > 86400:
        raise Refused("ValidationError", "Metrics cannot be checked across more than a day")
    account.tables["alarms"][request["AlarmName"]] = {**request, "since": account.clock.now}


@operation("cloudwatch", "DescribeAlarms")
def describe_alarms(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    wanted = request.get("AlarmNamePrefix", "")
    rows = [row for name, row in sorted(account.tables["alarms"].items()) if name.startswith(wanted)]
    return {"MetricAlarms": [{"AlarmName": row["AlarmName"], "StateValue": _state(account, row)} for row in rows]}


def _state(account: Account, row: dict[str, Any]) -> str:
    name = next(each["Value"] for each in row["Dimensions"] if each["Name"] == "EndpointName")
    quiet_since = max(row["since"], account.tables["asked"].get(name, 0.0))
    return "ALARM" if account.clock.now - quiet_since >= row["Period"] * row["EvaluationPeriods"] else "OK"


@operation("cloudwatch", "DeleteAlarms")
def delete_alarms(account: Account, request: dict[str, Any]) -> None:
    for name in request["AlarmNames"]:
        account.tables["alarms"].pop(name, None)
