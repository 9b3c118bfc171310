"""A deployment as the exact requests that make it, in order. Pure: nothing is sent here.

Parameters are those of botocore's service models. Each call can be sent again: names are the deployment's own, so a
second creation is refused by AWS as already there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from backend.domain.deploy.container import Paths, environment, read_environment
from backend.domain.deploy.deployment import CHANNEL, FOLDER, VARIANT, Capacity, Deployment, Rollout, idle_alarm

DIMENSION = "sagemaker:variant:DesiredInstanceCount"
NAMESPACE = "sagemaker"


PROVISIONING_S = 900
"""Seconds for the instance itself, on top of download and start."""
AT_ONCE = Rollout()
MOST_SHIFT_S = 28800
"""AWS's own limit."""


class Call(NamedTuple):
    """One request of a service's client, by the names of boto3."""

    service: str
    operation: str
    parameters: dict[str, Any]


def content(deployment: Deployment) -> tuple[Call, ...]:
    """The model and the configuration, of which nothing runs yet."""
    marked = {"Tags": tags(deployment)}
    return (
        Call("sagemaker", "create_model", {**model(deployment), **marked}),
        Call("sagemaker", "create_endpoint_config", {**configuration(deployment), **marked}),
    )


def create(deployment: Deployment) -> tuple[Call, ...]:
    """Return the calls that make the model, the configuration, and last the endpoint, which is then waited for."""
    named = {"EndpointName": deployment.endpoint, "EndpointConfigName": deployment.version}
    return (*content(deployment), Call("sagemaker", "create_endpoint", {**named, "Tags": tags(deployment)}))


def update(deployment: Deployment, rollout: Rollout) -> tuple[Call, ...]:
    """Return the calls that make the model and the configuration, and shift an endpoint in service to them."""
    return (*content(deployment), shift(deployment.endpoint, deployment.version, rollout, longest(deployment, rollout)))


def shift(endpoint: str, version: str, rollout: Rollout, longest_s: int = MOST_SHIFT_S) -> Call:
    """Return the calls that shift the endpoint to the configuration `version`: new instances beside the old, then all
    requests at once. AWS gives up after `longest_s`."""
    routing = {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": rollout.bake_s}
    watched = {"AutoRollbackConfiguration": {"Alarms": [{"AlarmName": name} for name in rollout.alarms]}}
    blue_green = {"TrafficRoutingConfiguration": routing, "MaximumExecutionTimeoutInSeconds": longest_s}
    parameters = {
        "EndpointName": endpoint,
        "EndpointConfigName": version,
        "RetainAllVariantProperties": rollout.keep_count,
        "DeploymentConfig": {"BlueGreenUpdatePolicy": blue_green, **(watched if rollout.alarms else {})},
    }
    return Call("sagemaker", "update_endpoint", parameters)


def longest(deployment: Deployment, rollout: Rollout = AT_ONCE) -> int:
    """Return the seconds in which it must be in service."""
    return min(MOST_SHIFT_S, deployment.download_s + deployment.start_s + rollout.bake_s + PROVISIONING_S)


def tags(deployment: Deployment) -> list[dict[str, str]]:
    return [{"Key": name, "Value": value} for name, value in deployment.marks.items()]


def model(deployment: Deployment) -> dict[str, Any]:
    """Each folder of weights is a data source of its own. The container needs no network: all that it reads is
    there."""
    # 1. The container, with the weights of the model and of a draft.
    container: dict[str, Any] = {"Image": deployment.image, "ModelDataSource": source(deployment.data + "model/")}
    if deployment.draft:
        draft = {"ChannelName": CHANNEL, **source(deployment.data + "draft/")}
        container["AdditionalModelDataSources"] = [draft]
    container["Environment"] = environment(deployment, Paths())
    # 2. The model around it.
    request: dict[str, Any] = {
        "ModelName": deployment.version,
        "PrimaryContainer": container,
        "ExecutionRoleArn": deployment.role,
        "EnableNetworkIsolation": True,
    }
    if deployment.subnets:
        request["VpcConfig"] = {
            "SecurityGroupIds": [*deployment.security_groups],
            "Subnets": [*deployment.subnets],
        }
    return request


def configuration(deployment: Deployment) -> dict[str, Any]:
    key = {"KmsKeyId": deployment.kms_key} if deployment.kms_key else {}
    return {"EndpointConfigName": deployment.version, "ProductionVariants": [variant(deployment)], **key}


def read(model: Mapping[str, Any], configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The deployment's fields that an answer of `describe_model` and of `describe_endpoint_config` show: what an update
    keeps."""
    container = model["PrimaryContainer"]
    served = configuration["ProductionVariants"][0]
    vpc = model.get("VpcConfig") or {}
    data = container["ModelDataSource"]["S3DataSource"]["S3Uri"]
    kind, parallel = read_environment(container.get("Environment", {}))
    return {
        "role": model["ExecutionRoleArn"],
        "image": container["Image"],
        "container": kind,
        "tensor_parallel": parallel,
        "bucket": data.removeprefix("s3://").partition(f"/{FOLDER}/")[0],
        "instance": served["InstanceType"],
        "instances": served["InitialInstanceCount"],
        "kms_key": configuration.get("KmsKeyId"),
        "subnets": tuple(vpc.get("Subnets", ())),
        "security_groups": tuple(vpc.get("SecurityGroupIds", ())),
    }


def source(uri: str) -> dict[str, Any]:
    return {"S3DataSource": {"S3Uri": uri, "S3DataType": "S3Prefix", "CompressionType": "None"}}


def variant(deployment: Deployment) -> dict[str, Any]:
    """Return the production variant of an endpoint configuration."""
    return {
        "VariantName": VARIANT,
        "ModelName": deployment.version,
        "InstanceType": deployment.instance,
        "InitialInstanceCount": deployment.instances,
        "InitialVariantWeight": 1.0,
        "ModelDataDownloadTimeoutInSeconds": deployment.download_s,
        "ContainerStartupHealthCheckTimeoutInSeconds": deployment.start_s,
        "InferenceAmiVersion": deployment.host,
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
    }


def scaled(resource: str) -> dict[str, str]:
    """Return the endpoint as Application Auto Scaling names it."""
    return {"ServiceNamespace": NAMESPACE, "ResourceId": resource, "ScalableDimension": DIMENSION}


def policy_name(deployment: Deployment) -> str:
    return f"{deployment.endpoint}-load"


def limits(deployment: Deployment) -> dict[str, int]:
    """Return the limits of instances, until a schedule changes them."""
    rest = deployment.capacity or Capacity(minimum=deployment.instances, maximum=deployment.instances, invocations=1)
    return {"MinCapacity": rest.minimum, "MaxCapacity": rest.maximum}


def scheduled(deployment: Deployment) -> list[dict[str, Any]]:
    """Return the scheduled actions, without what they act on."""
    zone = {"Timezone": deployment.timezone} if deployment.timezone else {}
    return [
        {
            "ScheduledActionName": f"{deployment.endpoint}-{number}",
            "Schedule": action.at,
            **zone,
            "ScalableTargetAction": {"MinCapacity": action.minimum, "MaxCapacity": action.maximum},
        }
        for number, action in enumerate(deployment.schedule, 1)
    ]


def alarm(deployment: Deployment) -> dict[str, Any]:
    """Return the alarm of an idle deployment: no minute with a request. A minute without requests has no data."""
    assert deployment.idle is not None
    notified = {"AlarmActions": [deployment.idle.topic]} if deployment.idle.topic else {}
    dimensions = {"EndpointName": deployment.endpoint, "VariantName": VARIANT}
    return {
        "AlarmName": idle_alarm(deployment.endpoint),
        "AlarmDescription": "Nothing is asked of it, and it costs money.",
        "Namespace": "AWS/SageMaker",
        "MetricName": "Invocations",
        "Statistic": "Sum",
        "Period": 60,
        "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions.items()],
        "EvaluationPeriods": deployment.idle.minutes,
        "DatapointsToAlarm": deployment.idle.minutes,
        "ComparisonOperator": "LessThanThreshold",
        "Threshold": 1.0,
        "TreatMissingData": "breaching",
        **notified,
    }


def tracking(deployment: Deployment) -> dict[str, Any]:
    """Return the target tracking of the autoscaling policy: invocations per minute of each instance."""
    assert deployment.capacity is not None
    return {
        "TargetValue": deployment.capacity.invocations,
        "PredefinedMetricSpecification": {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"},
        "ScaleInCooldown": 300,
        "ScaleOutCooldown": 60,
    }


def around(deployment: Deployment) -> tuple[Call, ...]:
    """Return the calls for the surroundings of an endpoint in service: its number of instances over time, and the alarm
    of an idle one."""
    # 1. The bounds of the number of instances, and what changes it: the load and the clock.
    where, service = scaled(deployment.resource), "application-autoscaling"
    calls = []
    if deployment.capacity or deployment.schedule:
        calls.append(Call(service, "register_scalable_target", {**where, **limits(deployment)}))
    if deployment.capacity:
        policy = {
            **where,
            "PolicyName": policy_name(deployment),
            "PolicyType": "TargetTrackingScaling",
            "TargetTrackingScalingPolicyConfiguration": tracking(deployment),
        }
        calls.append(Call(service, "put_scaling_policy", policy))
    calls += [Call(service, "put_scheduled_action", {**where, **call}) for call in scheduled(deployment)]
    # 2. The alarm.
    if deployment.idle:
        calls.append(Call("cloudwatch", "put_metric_alarm", {**alarm(deployment), "Tags": tags(deployment)}))
    return tuple(calls)
