"""A deployment as CloudFormation and as Terraform (JSON syntax), from the documents of `sagemaker_requests`.

Both put model and draft under one data source, which needs no additional ones: not every version of either knows those.
The weights must be in the bucket before: `aws s3 cp --recursive` of the artifact's `model/` and `draft/`, or an earlier
deploy.
"""

from __future__ import annotations

import json
import re
from typing import Any

from backend.domain.deploy import sagemaker_requests
from backend.domain.deploy.container import TOGETHER, environment
from backend.domain.deploy.deployment import VARIANT, Deployment

PROVIDER = {"source": "hashicorp/aws", "version": ">= 6.46"}
"""The provider's version. It must be newer than `deployment.HOST`, which AWS's API has since March 2026; 6.46 is of
May."""
REPLACED = {"lifecycle": {"create_before_destroy": True}}
"""AWS lets no configuration be deleted that an endpoint is on."""
WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
TERRAFORM_NAMES = {
    "S3Uri": "s3_uri",
    "S3DataType": "s3_data_type",
    "S3DataSource": "s3_data_source",
    "ModelDataDownloadTimeoutInSeconds": "model_data_download_timeout_in_seconds",
    "ContainerStartupHealthCheckTimeoutInSeconds": "container_startup_health_check_timeout_in_seconds",
}


def cloudformation(deployment: Deployment) -> str:
    """Return a template with nothing to fill in."""
    marked = {"Tags": sagemaker_requests.tags(deployment)}
    resources: dict[str, Any] = {
        "Model": {"Type": "AWS::SageMaker::Model", "Properties": {**_model(deployment), **marked}},
        "Configuration": {
            "Type": "AWS::SageMaker::EndpointConfig",
            "Properties": {
                **sagemaker_requests.configuration(deployment),
                **marked,
                "ProductionVariants": [
                    sagemaker_requests.variant(deployment) | {"ModelName": _attribute("Model", "ModelName")}
                ],
            },
        },
        "Endpoint": {
            "Type": "AWS::SageMaker::Endpoint",
            "Properties": {
                "EndpointName": deployment.endpoint,
                "EndpointConfigName": _attribute("Configuration", "EndpointConfigName"),
                **marked,
            },
        },
    }
    return _text(
        {
            "AWSTemplateFormatVersion": "2010-09-09",
            "Description": f"{deployment.artifact} on {deployment.instance}, by Whetstone",
            "Resources": resources | _scaling_resources(deployment) | _alarm_resource(deployment),
            "Outputs": {"Endpoint": {"Value": _attribute("Endpoint", "EndpointName")}},
        }
    )


def _scaling_resources(deployment: Deployment) -> dict[str, Any]:
    if not (deployment.capacity or deployment.schedule):
        return {}
    # 1. The bounds of the number of instances, with its changes over time.
    actions = {"ScheduledActions": sagemaker_requests.scheduled(deployment)} if deployment.schedule else {}
    target = {**sagemaker_requests.scaled(deployment.resource), **sagemaker_requests.limits(deployment), **actions}
    registered = {
        "Capacity": {
            "Type": "AWS::ApplicationAutoScaling::ScalableTarget",
            "DependsOn": "Endpoint",
            "Properties": target,
        }
    }
    if deployment.capacity is None:
        return registered
    # 2. The policy that follows the load.
    policy = {
        "PolicyName": sagemaker_requests.policy_name(deployment),
        "PolicyType": "TargetTrackingScaling",
        "ScalingTargetId": {"Ref": "Capacity"},
        "TargetTrackingScalingPolicyConfiguration": sagemaker_requests.tracking(deployment),
    }
    return registered | {"Load": {"Type": "AWS::ApplicationAutoScaling::ScalingPolicy", "Properties": policy}}


def _alarm_resource(deployment: Deployment) -> dict[str, Any]:
    if deployment.idle is None:
        return {}
    return {
        "Idle": {
            "Type": "AWS::CloudWatch::Alarm",
            "DependsOn": "Endpoint",
            "Properties": sagemaker_requests.alarm(deployment),
        }
    }


def _model(deployment: Deployment) -> dict[str, Any]:
    """Return the model with everything under one data source where there is a draft."""
    attributes = sagemaker_requests.model(deployment)
    if not deployment.draft:
        return attributes
    container = {
        "Image": deployment.image,
        "ModelDataSource": sagemaker_requests.source(deployment.data),
        "Environment": environment(deployment, TOGETHER),
    }
    return attributes | {"PrimaryContainer": container}


def _attribute(resource: str, name: str) -> dict[str, list[str]]:
    return {"Fn::GetAtt": [resource, name]}


def terraform(deployment: Deployment) -> str:
    """Return a `.tf.json` for the provider hashicorp/aws."""
    # 1. The model, whose container is a block of its own form.
    marked = {"tags": deployment.marks}
    model = _snaked(_model(deployment) | {"PrimaryContainer": None})
    model |= {"name": model.pop("model_name"), "primary_container": _container(deployment), **marked, **REPLACED}
    if deployment.subnets:
        model["vpc_config"] = _snaked(model["vpc_config"])
    # 2. The configuration, and the endpoint that refers to it.
    variant = _snaked(sagemaker_requests.variant(deployment)) | {"model_name": "${aws_sagemaker_model.model.name}"}
    key = {"kms_key_arn": deployment.key_arn} if deployment.kms_key else {}
    configuration = {"name": deployment.version, "production_variants": [variant], **key, **marked, **REPLACED}
    named = "${aws_sagemaker_endpoint_configuration.configuration.name}"
    endpoint = {"name": deployment.endpoint, "endpoint_config_name": named, **marked}
    # 3. The file, with what scales and watches the endpoint.
    resources = {
        "aws_sagemaker_model": {"model": model},
        "aws_sagemaker_endpoint_configuration": {"configuration": configuration},
        "aws_sagemaker_endpoint": {"endpoint": endpoint},
        **_scaling_blocks(deployment),
        **_alarm_block(deployment),
    }
    return _text(
        {
            "terraform": {"required_providers": {"aws": PROVIDER}},
            "provider": {"aws": {"region": deployment.region}},
            "resource": resources,
            "output": {"endpoint": {"value": "${aws_sagemaker_endpoint.endpoint.name}"}},
        }
    )


def _container(deployment: Deployment) -> dict[str, Any]:
    attributes = _model(deployment)["PrimaryContainer"]
    data = _snaked(attributes["ModelDataSource"]["S3DataSource"])
    return {
        "image": attributes["Image"],
        "model_data_source": {"s3_data_source": data},
        "environment": attributes["Environment"],
    }


def _scaling_blocks(deployment: Deployment) -> dict[str, Any]:
    if not (deployment.capacity or deployment.schedule):
        return {}
    # 1. The bounds of the number of instances; other blocks refer to them.
    target = _snaked(sagemaker_requests.scaled(deployment.resource) | sagemaker_requests.limits(deployment))
    resource = f"endpoint/${{aws_sagemaker_endpoint.endpoint.name}}/variant/{VARIANT}"
    same = {name: f"${{aws_appautoscaling_target.capacity.{name}}}" for name in _snaked(sagemaker_requests.scaled(""))}
    blocks: dict[str, Any] = {"aws_appautoscaling_target": {"capacity": target | {"resource_id": resource}}}
    # 2. The policy that follows the load.
    if deployment.capacity:
        tracked = _snaked(sagemaker_requests.tracking(deployment))
        tracked["predefined_metric_specification"] = _snaked(tracked["predefined_metric_specification"])
        policy = {
            "name": sagemaker_requests.policy_name(deployment),
            "policy_type": "TargetTrackingScaling",
            **same,
            "target_tracking_scaling_policy_configuration": tracked,
        }
        blocks["aws_appautoscaling_policy"] = {"load": policy}
    # 3. Changes over time, a block each.
    if deployment.schedule:
        scheduled = sagemaker_requests.scheduled(deployment)
        actions = [
            _snaked(action | {"ScalableTargetAction": _snaked(action["ScalableTargetAction"])}) for action in scheduled
        ]
        blocks["aws_appautoscaling_scheduled_action"] = {
            f"at_{number}": same | {"name": action.pop("scheduled_action_name")} | action
            for number, action in enumerate(actions, 1)
        }
    return blocks


def _alarm_block(deployment: Deployment) -> dict[str, Any]:
    if deployment.idle is None:
        return {}
    alarm = sagemaker_requests.alarm(deployment)
    dimensions = {action["Name"]: action["Value"] for action in alarm["Dimensions"]}
    dimensions["EndpointName"] = "${aws_sagemaker_endpoint.endpoint.name}"
    return {
        "aws_cloudwatch_metric_alarm": {"idle": _snaked(alarm) | {"dimensions": dimensions, "tags": deployment.marks}}
    }


def _snaked(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return Terraform's names of AWS's parameters, of this level."""
    pairs = {TERRAFORM_NAMES.get(name) or WORD.sub("_", name).lower(): value for name, value in parameters.items()}
    routing = pairs.get("routing_config")
    return pairs | ({"routing_config": [_snaked(routing)]} if routing else {})


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"
