"""Models, configurations, endpoints with their autoscaling, and the log that a container writes.

An endpoint is Creating for a while by the account's clock, then InService or Failed (lever `endpoint_plan`); it writes
vLLM's lines into its log. The lever `container` sets what the container does: which quantization it reads in the
weights, whether it ignores a draft.
"""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.sagemaker.account import Account, Refused, lever, operation
from tests.fakes.sagemaker.shapes import moment

CREATING_S, UPDATING_S, ROLLING_S, DELETING_S = 300.0, 400.0, 60.0, 30.0


def _missing(kind: str, name: str) -> Refused:
    return Refused("ValidationException", f'Could not find {kind} "{name}".')


def _create(account: Account, table: str, kind: str, name: str, row: dict[str, Any]) -> str:
    if name in account.tables[table]:
        raise Refused("ValidationException", f'Cannot create already existing {kind} "{name}".')
    arn = account.arn(kind, name)
    account.tables[table][name] = {**row, "arn": arn, "created": account.clock.now}
    account.tables["tags"][arn] = row.get("Tags", [])
    return arn


def _require_row(account: Account, table: str, kind: str, name: str) -> dict[str, Any]:
    if name not in account.tables[table]:
        raise _missing(kind, name)
    return account.tables[table][name]


def _page(account: Account, request: dict[str, Any], table: str) -> tuple[list[tuple[str, dict[str, Any]]], str | None]:
    listed, required = account.clock.now - account.late_s, request.get("NameContains", "")
    named = [
        (name, row) for name, row in account.tables[table].items() if required in name and row["created"] <= listed
    ]
    named.sort(key=lambda each: each[1]["created"], reverse=True)
    first, size = int(request.get("NextToken") or 0), request.get("MaxResults", 10)
    return named[first : first + size], str(first + size) if first + size < len(named) else None


@operation("sagemaker", "CreateModel")
def create_model(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    return {"ModelArn": _create(account, "models", "model", request["ModelName"], request)}


@operation("sagemaker", "DescribeModel")
def describe_model(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    row = _require_row(account, "models", "model", request["ModelName"])
    by_name = {name: row.get(name) for name in ("ModelName", "PrimaryContainer", "ExecutionRoleArn", "VpcConfig")}
    return {**by_name, "ModelArn": row["arn"], "CreationTime": moment(row["created"])}


@operation("sagemaker", "DeleteModel")
def delete_model(account: Account, request: dict[str, Any]) -> None:
    _require_row(account, "models", "model", request["ModelName"])
    del account.tables["models"][request["ModelName"]]


@operation("sagemaker", "ListModels")
def list_models(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    rows, more = _page(account, request, "models")
    results = [
        {"ModelName": name, "ModelArn": row["arn"], "CreationTime": moment(row["created"])} for name, row in rows
    ]
    return {"Models": results, "NextToken": more}


@operation("sagemaker", "CreateEndpointConfig")
def create_configuration(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    for variant in request["ProductionVariants"]:
        _require_row(account, "models", "model", variant["ModelName"])
    name = request["EndpointConfigName"]
    return {"EndpointConfigArn": _create(account, "configurations", "endpoint-config", name, request)}


@operation("sagemaker", "DescribeEndpointConfig")
def describe_configuration(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    row = _require_row(account, "configurations", "endpoint configuration", request["EndpointConfigName"])
    by_name = {name: row.get(name) for name in ("EndpointConfigName", "ProductionVariants", "KmsKeyId")}
    return {**by_name, "EndpointConfigArn": row["arn"], "CreationTime": moment(row["created"])}


@operation("sagemaker", "DeleteEndpointConfig")
def delete_configuration(account: Account, request: dict[str, Any]) -> None:
    name = request["EndpointConfigName"]
    _require_row(account, "configurations", "endpoint configuration", name)
    if name in used(account):
        raise Refused("ValidationException", f"The fake refuses what AWS warns of: {name} is in use by an endpoint.")
    del account.tables["configurations"][name]


def used(account: Account) -> set[str]:
    """The configurations of endpoints that live: what each serves, and what it is being updated to."""
    names = set()
    for row in account.tables["endpoints"].values():
        if row["deleted"] is None:
            now = status(account, row)
            going = row["update"] is not None and not row["update"]["done"] and now != "RollingBack"
            names |= {row["EndpointConfigName"], row["update"]["EndpointConfigName"] if going else ""}
    return names


@operation("sagemaker", "ListEndpointConfigs")
def list_configurations(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    rows, more = _page(account, request, "configurations")
    results = [
        {"EndpointConfigName": name, "EndpointConfigArn": row["arn"], "CreationTime": moment(row["created"])}
        for name, row in rows
    ]
    return {"EndpointConfigs": results, "NextToken": more}


@operation("sagemaker", "CreateEndpoint")
def create_endpoint(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    _require_row(account, "configurations", "endpoint configuration", request["EndpointConfigName"])
    plan = {"creating_s": CREATING_S, "ends": "InService", "reason": None, **account.tables["endpoint plan"]}
    arn = _create(
        account,
        "endpoints",
        "endpoint",
        request["EndpointName"],
        {**request, "plan": plan, "deleted": None, "update": None},
    )
    _start(account, request)
    return {"EndpointArn": arn}


def _start(account: Account, request: dict[str, Any]) -> None:
    """What vLLM writes first."""
    configuration = account.tables["configurations"][request["EndpointConfigName"]]
    container = account.tables["models"][configuration["ProductionVariants"][0]["ModelName"]]["PrimaryContainer"]
    environment, does = container["Environment"], account.tables["container"]
    value = environment.get("OPTION_SPECULATIVE_CONFIG") or environment.get("SM_VLLM_SPECULATIVE_CONFIG")
    channels = [each["ChannelName"] for each in container.get("AdditionalModelDataSources", [])]
    staged = {f"/opt/ml/additional-model-data-sources/{name}" for name in channels}
    parsed = json.loads(value) if value and not does.get("ignores_draft") else None
    if parsed and "model" in parsed and parsed["model"] not in staged:
        parsed = None
    text = (
        f"SpeculativeConfig(method='{parsed['method']}', model={parsed.get('model')!r}, num_spec_tokens=4)"
        if parsed
        else "None"
    )
    quantization = does.get("quantization", "compressed-tensors")
    account.tables["speculates"][request["EndpointName"]] = parsed is not None
    write(
        account,
        request["EndpointName"],
        f"INFO Initializing a V1 LLM engine (v0.32.0) with config: model='/opt/ml/model', speculative_config={text}, "
        f"tokenizer='/opt/ml/model', quantization={quantization}, quantization_config=None, enforce_eager=False",
    )


def write(account: Account, name: str, line: str) -> None:
    """Into the endpoint's log."""
    lines = account.tables["logs"].setdefault(f"/aws/sagemaker/Endpoints/{name}", [])
    lines.append({"timestamp": int(account.clock.now * 1000), "message": line})


@operation("sagemaker", "UpdateEndpoint")
def update_endpoint(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    """The lever `update_plan` says how it goes."""
    row = _endpoint(account, request["EndpointName"])
    configuration = _require_row(account, "configurations", "endpoint configuration", request["EndpointConfigName"])
    now = status(account, row)
    if now in {"Creating", "Updating", "RollingBack"} or (row["update"] is not None and not row["update"]["done"]):
        raise Refused("ValidationException", f'Cannot update in-progress endpoint "{row["arn"]}".')
    if now != "InService":
        raise Refused("ValidationException", f'Cannot update endpoint "{row["arn"]}" in status {now}.')
    before = account.tables["configurations"][row["EndpointConfigName"]]["ProductionVariants"][0]
    scaled = f"endpoint/{request['EndpointName']}/variant/AllTraffic" in account.tables["targets"]
    if scaled and before["InstanceType"] != configuration["ProductionVariants"][0]["InstanceType"]:
        raise Refused(
            "ValidationException", "The variant is registered as a scalable target with another instance type."
        )
    plan = {"updating_s": UPDATING_S, "seen_s": 0, "ends": "InService", "reason": None, **account.tables["update plan"]}
    row["update"] = {**request, "at": account.clock.now, "plan": plan, "done": False}
    return {"EndpointArn": row["arn"]}


def status(account: Account, row: dict[str, Any]) -> str:
    """Brings what goes on by itself up to the clock."""
    if row["deleted"] is not None:
        return "Deleting"
    update = row["update"]
    if update is not None and not update["done"]:
        passed, plan = account.clock.now - update["at"], update["plan"]
        if passed < plan["updating_s"]:
            return "Updating" if passed >= plan["seen_s"] else "InService"
        if plan["ends"] == "RolledBack" and passed < plan["updating_s"] + ROLLING_S:
            return "RollingBack"
        update["done"] = True
        row["reason"] = plan["reason"]
        if plan["ends"] == "InService":
            row["EndpointConfigName"] = update["EndpointConfigName"]
            _start(account, row)
        elif plan["ends"] != "RolledBack":
            row["plan"] = {**row["plan"], "ends": plan["ends"]}
    return row["plan"]["ends"] if account.clock.now - row["created"] >= row["plan"]["creating_s"] else "Creating"


def _endpoint(account: Account, name: str) -> dict[str, Any]:
    row = _require_row(account, "endpoints", "endpoint", name)
    if row["deleted"] is not None and account.clock.now - row["deleted"] >= DELETING_S:
        del account.tables["endpoints"][name]
        raise _missing("endpoint", name)
    return row


@operation("sagemaker", "DescribeEndpoint")
def describe_endpoint(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    row = _endpoint(account, request["EndpointName"])
    now = status(account, row)
    pending = {"EndpointConfigName": (row["update"] or {}).get("EndpointConfigName")}
    count = account.tables["configurations"].get(row["EndpointConfigName"], {}).get("ProductionVariants", [{}])[0]
    running = count.get("InitialInstanceCount", 1) if now == "InService" else 0
    return {
        "EndpointName": request["EndpointName"],
        "EndpointArn": row["arn"],
        "EndpointConfigName": row["EndpointConfigName"],
        "EndpointStatus": now,
        "FailureReason": row.get("reason") or (row["plan"]["reason"] if now == "Failed" else None),
        "PendingDeploymentSummary": pending if now == "Updating" else None,
        "CreationTime": moment(row["created"]),
        "LastModifiedTime": moment(row["created"]),
        "ProductionVariants": [{"VariantName": "AllTraffic", "CurrentInstanceCount": running}],
    }


@operation("sagemaker", "DeleteEndpoint")
def delete_endpoint(account: Account, request: dict[str, Any]) -> None:
    row = _endpoint(account, request["EndpointName"])
    if status(account, row) in {"Creating", "Updating", "RollingBack"}:
        raise Refused("ValidationException", f'Cannot update in-progress endpoint "{row["arn"]}".')
    row["deleted"] = row["deleted"] or account.clock.now


@operation("sagemaker", "ListEndpoints")
def list_endpoints(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    rows, more = _page(account, request, "endpoints")
    results = [
        {
            "EndpointName": name,
            "EndpointArn": row["arn"],
            "CreationTime": moment(row["created"]),
            "LastModifiedTime": moment(row["created"]),
            "EndpointStatus": status(account, row),
        }
        for name, row in rows
    ]
    return {"Endpoints": results, "NextToken": more}


@operation("sagemaker", "ListTags")
def list_tags(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    return {"Tags": account.tables["tags"].get(request["ResourceArn"], [])}


@operation("application-autoscaling", "RegisterScalableTarget")
def register(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    name = request["ResourceId"].split("/")[1]
    if status(account, _endpoint(account, name)) != "InService":
        raise Refused("ValidationException", f"The endpoint {name} is not in service.")
    account.tables["targets"][request["ResourceId"]] = request
    return {}


@operation("application-autoscaling", "DescribeScalableTargets")
def targets(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    remaining = ("ServiceNamespace", "ResourceId", "ScalableDimension", "MinCapacity", "MaxCapacity")
    rows = [row for name, row in account.tables["targets"].items() if name in request.get("ResourceIds", [name])]
    own = {"RoleARN": account.arn("role", "scaling", "iam"), "CreationTime": moment(account.clock.now)}
    return {"ScalableTargets": [{**{name: row[name] for name in remaining}, **own} for row in rows]}


@operation("application-autoscaling", "PutScalingPolicy")
def put_policy(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    if request["ResourceId"] not in account.tables["targets"]:
        raise Refused("ObjectNotFoundException", f"No scalable target {request['ResourceId']}.")
    account.tables["policies"][request["PolicyName"]] = request
    return {"PolicyARN": account.arn("scalingPolicy", request["PolicyName"], "autoscaling"), "Alarms": []}


@operation("application-autoscaling", "PutScheduledAction")
def put_action(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    if request["ResourceId"] not in account.tables["targets"]:
        raise Refused("ObjectNotFoundException", f"No scalable target {request['ResourceId']}.")
    account.tables["actions"][request["ScheduledActionName"]] = request
    return {}


@operation("application-autoscaling", "DeregisterScalableTarget")
def deregister(account: Account, request: dict[str, Any]) -> None:
    if account.tables["targets"].pop(request["ResourceId"], None) is None:
        raise Refused("ObjectNotFoundException", f"No scalable target {request['ResourceId']}.")
    for table in (account.tables["policies"], account.tables["actions"]):
        for name in [name for name, row in table.items() if row["ResourceId"] == request["ResourceId"]]:
            del table[name]


@operation("logs", "FilterLogEvents")
def filter_log(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    if request["logGroupName"] not in account.tables["logs"]:
        raise Refused("ResourceNotFoundException", "The specified log group does not exist.")
    since = request.get("startTime", 0)
    return {"events": [line for line in account.tables["logs"][request["logGroupName"]] if line["timestamp"] >= since]}


@lever("endpoint_plan")
def endpoint_plan(account: Account, settings: dict[str, Any]) -> None:
    """How the next endpoints go: `creating_s`, `ends` (InService or Failed), `reason`."""
    account.tables["endpoint plan"] = settings


@lever("update_plan")
def update_plan(account: Account, settings: dict[str, Any]) -> None:
    """How the next updates go: `updating_s`, `seen_s` before it is seen, `ends` (InService, RolledBack, Failed or
    UpdateRollbackFailed), `reason`."""
    account.tables["update plan"] = settings


@lever("container")
def container(account: Account, settings: dict[str, Any]) -> None:
    """`quantization`, `ignores_draft`, `answer`; `url`, `split` and `breaks` as `runtime` says."""
    account.tables["container"] = settings
