"""The IAM policy of who deploys, proves, lists and deletes an endpoint: the calls that are made, each on what is ours
alone."""

from __future__ import annotations

import json
from typing import Any

from backend.domain.deploy.deployment import FOLDER, PREFIX, Deployment, idle_alarm, key_arn

ENDPOINT = ("CreateEndpoint", "UpdateEndpoint", "DescribeEndpoint", "DeleteEndpoint")
INVOKED = ("InvokeEndpoint", "InvokeEndpointWithResponseStream")
"""Two separate rights: of checking the deployment, and of measuring or asking it."""
CONFIGURATION = ("CreateEndpointConfig", "DescribeEndpointConfig", "DeleteEndpointConfig")
CHECKED = ("CreateEndpoint", "UpdateEndpoint")
"""Against the configuration too."""
MODEL = ("CreateModel", "DescribeModel", "DeleteModel")
LISTS = ("ListEndpoints", "ListEndpointConfigs", "ListModels")
"""AWS lets no list be narrowed to a resource."""
LISTED = ("DescribeEndpoint", "DescribeEndpointConfig")
"""Rights on every endpoint that a list shows."""
TAGGED = ("AddTags", "ListTags")
"""A creation with tags needs the right to add them."""
SCALING = ("RegisterScalableTarget", "PutScalingPolicy")
SCALED = ("DescribeScalableTargets", "DeregisterScalableTarget")
"""Rights that every update and every deletion needs."""
WATCHING = ("PutMetricAlarm", "TagResource")
OBJECTS = ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload", "ListMultipartUploadParts")
BUCKET = ("ListBucket", "ListBucketMultipartUploads")


def document(deployment: Deployment) -> dict[str, Any]:
    """Return the policy of a deployment. Without autoscaling or an alarm only their removal is allowed."""
    # 1. The names of what belongs to the deployment.
    partition, account = deployment.role.split(":")[1], deployment.role.split(":")[4]
    base = f"arn:{partition}:sagemaker:{deployment.region}:{account}"
    named = {kind: f"{base}:{kind}/{PREFIX}{deployment.id}" for kind in ("endpoint", "endpoint-config", "model")}
    bucket = f"arn:{partition}:s3:::{deployment.bucket_name}"
    folder = f"{deployment.prefix}{FOLDER}/{deployment.id}/*"
    logs = (
        f"arn:{partition}:logs:{deployment.region}:{account}:log-group:/aws/sagemaker/Endpoints/{deployment.endpoint}:*"
    )
    # 2. The actions that depend on its options.
    scaling = (
        *(SCALING[:1] if deployment.capacity or deployment.schedule else ()),
        *(SCALING[1:] if deployment.capacity else ()),
        *(("PutScheduledAction",) if deployment.schedule else ()),
        *SCALED,
    )
    # 3. The key of the volume, which SageMaker is granted by whoever creates the endpoint.
    key = deployment.kms_key and key_statement(deployment.kms_key, partition, deployment.region, account, "CreateGrant")
    alarm = f"arn:{partition}:cloudwatch:{deployment.region}:{account}:alarm:{idle_alarm(deployment.endpoint)}"
    # 4. The policy.
    return {
        "Version": "2012-10-17",
        "Statement": [
            allow("Endpoint", "sagemaker", (*ENDPOINT, *INVOKED), named["endpoint"]),
            allow("Configuration", "sagemaker", (*CONFIGURATION, *CHECKED), f"{named['endpoint-config']}-*"),
            allow("Model", "sagemaker", MODEL, f"{named['model']}-*"),
            allow(
                "Tags", "sagemaker", TAGGED, named["endpoint"], f"{named['endpoint-config']}-*", f"{named['model']}-*"
            ),
            allow("Lists", "sagemaker", LISTS, "*"),
            allow(
                "Listed",
                "sagemaker",
                ("ListTags", *LISTED),
                f"{base}:endpoint/{PREFIX}*",
                f"{base}:endpoint-config/{PREFIX}*",
            ),
            allow("Role", "iam", ("PassRole",), deployment.role)
            | {"Condition": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}},
            allow("Weights", "s3", OBJECTS, f"{bucket}/{folder}"),
            allow("Bucket", "s3", BUCKET, bucket) | {"Condition": {"StringLike": {"s3:prefix": folder}}},
            allow("Logs", "logs", ("FilterLogEvents",), logs),
            allow("Scaling", "application-autoscaling", scaling, "*"),
            allow("Watch", "cloudwatch", ("DescribeAlarms", "GetMetricData"), "*"),
            allow("Idle", "cloudwatch", (*(WATCHING if deployment.idle else ()), "DeleteAlarms"), alarm),
            *(key or ()),
        ],
    }


def key_statement(key: str, partition: str, region: str, account: str, action: str) -> list[dict[str, Any]]:
    """Return the statement for a key by its id, alias or ARN."""
    before, alias, name = key_arn(key, partition, region, account).partition(":alias/")
    granted = allow("Key", "kms", (action,), f"{before}:key/*" if alias else before)
    named = {"Condition": {"ForAnyValue:StringEquals": {"kms:ResourceAliases": f"alias/{name}"}}}
    return [granted | (named if alias else {})]


def allow(name: str, service: str, actions: tuple[str, ...], *resources: str) -> dict[str, Any]:
    return {
        "Sid": name,
        "Effect": "Allow",
        "Action": [f"{service}:{action}" for action in actions],
        "Resource": list(resources),
    }


def text(deployment: Deployment) -> str:
    return json.dumps(document(deployment), indent=2) + "\n"
