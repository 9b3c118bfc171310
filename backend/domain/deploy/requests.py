"""A deployment as the exact requests that make it, in order. Pure: nothing is sent here.

Parameters are those of botocore's service models. Each call can be sent again: names are the deployment's own, so a second
creation is refused by AWS as already there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from backend.domain.deploy.container import HOST, Paths, environment
from backend.domain.deploy.deployment import CHANNEL, VARIANT, Deployment

DIMENSION = "sagemaker:variant:DesiredInstanceCount"
NAMESPACE = "sagemaker"


class Call(NamedTuple):
    """One request of a service's client, by the names of boto3."""

    service: str
    operation: str
    parameters: dict[str, Any]


def create(deployment: Deployment) -> tuple[Call, ...]:
    """The model, the configuration, and last the endpoint, after which it is waited for."""
    marked = {"Tags": tags(deployment)}
    configuration = {"EndpointConfigName": deployment.version}
    return (
        Call("sagemaker", "create_model", {**model(deployment), **marked}),
        Call("sagemaker", "create_endpoint_config", {**configuration, "ProductionVariants": [variant(deployment)], **marked}),
        Call("sagemaker", "create_endpoint", {"EndpointName": deployment.endpoint, **configuration, **marked}),
    )


def tags(deployment: Deployment) -> list[dict[str, str]]:
    return [{"Key": name, "Value": value} for name, value in deployment.marks.items()]


def model(deployment: Deployment) -> dict[str, Any]:
    """Each folder of weights is a data source of its own. The container needs no network: all that it reads is there."""
    draft = {"AdditionalModelDataSources": [{"ChannelName": CHANNEL, **source(deployment.data + "draft/")}]}
    container = {
        "Image": deployment.image, "ModelDataSource": source(deployment.data + "model/"), **(draft if deployment.draft else {}),
        "Environment": environment(deployment, Paths()),
    }  # fmt: skip
    return {
        "ModelName": deployment.version, "PrimaryContainer": container, "ExecutionRoleArn": deployment.role,
        "EnableNetworkIsolation": True,
    }  # fmt: skip


def source(uri: str) -> dict[str, Any]:
    return {"S3DataSource": {"S3Uri": uri, "S3DataType": "S3Prefix", "CompressionType": "None"}}


def variant(deployment: Deployment) -> dict[str, Any]:
    """The production variant of an endpoint configuration."""
    return {
        "VariantName": VARIANT, "ModelName": deployment.version, "InstanceType": deployment.instance,
        "InitialInstanceCount": deployment.instances, "InitialVariantWeight": 1.0,
        "ModelDataDownloadTimeoutInSeconds": deployment.download_s,
        "ContainerStartupHealthCheckTimeoutInSeconds": deployment.start_s, "InferenceAmiVersion": HOST,
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
    }  # fmt: skip


def scaled(resource: str) -> dict[str, str]:
    """What Application Auto Scaling calls the endpoint."""
    return {"ServiceNamespace": NAMESPACE, "ResourceId": resource, "ScalableDimension": DIMENSION}


def policy_name(deployment: Deployment) -> str:
    return f"{deployment.endpoint}-load"


def limits(deployment: Deployment) -> dict[str, int]:
    """Of a deployment with a capacity."""
    assert deployment.capacity is not None
    return {"MinCapacity": deployment.capacity.minimum, "MaxCapacity": deployment.capacity.maximum}


def tracking(deployment: Deployment) -> dict[str, Any]:
    """The target tracking of the autoscaling policy: invocations a minute of each instance."""
    assert deployment.capacity is not None
    return {
        "TargetValue": deployment.capacity.invocations,
        "PredefinedMetricSpecification": {"PredefinedMetricType": "SageMakerVariantInvocationsPerInstance"},
        "ScaleInCooldown": 300, "ScaleOutCooldown": 60,
    }  # fmt: skip


def scaling(deployment: Deployment) -> tuple[Call, ...]:
    """What can only be made of an endpoint that is in service; empty where the number of instances does not follow the load."""
    if deployment.capacity is None:
        return ()
    where, service = scaled(deployment.resource), "application-autoscaling"
    policy = {
        **where, "PolicyName": policy_name(deployment), "PolicyType": "TargetTrackingScaling",
        "TargetTrackingScalingPolicyConfiguration": tracking(deployment),
    }  # fmt: skip
    return (
        Call(service, "register_scalable_target", {**where, **limits(deployment)}),
        Call(service, "put_scaling_policy", policy),
    )
