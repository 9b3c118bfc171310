"""The IAM policy of who submits, watches and stops the optimization job of a recipe: the calls that are made, and no
others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from backend.domain.deploy.iam_policy import BUCKET, OBJECTS, allow, key_statement
from backend.domain.managed.optimization_requests import CONTENT

JOB = ("CreateOptimizationJob", "DescribeOptimizationJob", "StopOptimizationJob")
NAMES = "whetstone-*"


def document(request: Mapping[str, Any], region: str | None, *, fetched: bool) -> dict[str, Any]:
    """Return the policy of one request of `optimization_requests`.

    `region` None: that of the environment, which a policy cannot name. `fetched`: its result comes back.
    """
    # 1. What the policy names: jobs, the folder of results and its key.
    _, partition, _, _, account, _ = request["RoleArn"].split(":", 5)
    job = f"arn:{partition}:sagemaker:{region or '*'}:{account}:optimization-job/{NAMES}"
    output = request["OutputConfig"]
    results, key = f"{output['S3OutputLocation']}{NAMES}", output.get("KmsKeyId")
    # 2. A statement for each thing that is done.
    actions = (*JOB, "AddTags") if request.get("Tags") else JOB
    passed = {"Condition": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}}
    statements = [
        allow("Job", "sagemaker", actions, job),
        allow("Role", "iam", ("PassRole",), request["RoleArn"]) | passed,
        *_uploaded(partition, request["ModelSource"].get("S3", {}).get("S3Uri", "")),
    ]
    if fetched:
        statements += _folder("Result", partition, results, ("GetObject",), ("ListBucket",))
        if key:
            statements += key_statement(key, partition, region or "*", account, "Decrypt")
    return {"Version": "2012-10-17", "Statement": statements}


def _uploaded(partition: str, source: str) -> list[dict[str, Any]]:
    """Return the statements for the folder to which the weights go first, named by their bytes alone."""
    place, named, _ = source.partition(CONTENT)
    return _folder("Weights", partition, f"{place}*", OBJECTS, BUCKET) if named else []


def _folder(
    name: str, partition: str, place: str, objects: tuple[str, ...], bucket: tuple[str, ...]
) -> list[dict[str, Any]]:
    prefix, _, below = place.removeprefix("s3://").partition("/")
    arn = f"arn:{partition}:s3:::{prefix}"
    listed = allow(f"{name}List", "s3", bucket, arn) | {"Condition": {"StringLike": {"s3:prefix": below}}}
    return [allow(name, "s3", objects, f"{arn}/{below}"), listed]


def text(request: Mapping[str, Any], region: str | None, *, fetched: bool) -> str:
    return json.dumps(document(request, region, fetched=fetched), indent=2) + "\n"
