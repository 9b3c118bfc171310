"""Looks up an endpoint of SageMaker, whoever made it: what AWS says about it, and what its evidence proves."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from backend.aws.runtime import home_region
from backend.aws.sagemaker import ResourceMissing, Service
from backend.domain.deploy.deployment import ARTIFACT, PREFIX, TAG
from backend.domain.errors import NotFound, NotNow
from backend.domain.evaluation.evidence.schema import Finding
from backend.launchers.endpoints import Endpoints, read_tags

__all__ = ["ServingEndpoint", "home_region", "prove_endpoint", "resolve_endpoint"]


class ServingEndpoint(NamedTuple):
    """An endpoint that is in service. `instances`: how many of which type run; empty for a serverless one.

    `id` and `artifact` are None if it is not ours. An update changes the configuration, so the configuration's tags say
    which artifact is served.
    """

    name: str
    region: str
    instances: dict[str, int]
    id: str | None
    artifact: str | None


def resolve_endpoint(name: str, region: str) -> ServingEndpoint:
    """Return the endpoint of that name, or the one that Whetstone calls so. Raises NotFound, NotNow if it does not
    serve, and what AWS refuses."""
    # 1. Read the endpoint, its configuration and their tags.
    sagemaker = Service("sagemaker", region)
    try:
        description = sagemaker.call("describe_endpoint", EndpointName=name)
        configuration = sagemaker.call(
            "describe_endpoint_config", EndpointConfigName=description.get("EndpointConfigName", name)
        )
        own, served = (
            read_tags(sagemaker, arn) for arn in (description["EndpointArn"], configuration["EndpointConfigArn"])
        )
    except ResourceMissing:
        if not name.startswith(PREFIX):
            return resolve_endpoint(PREFIX + name, region)
        raise NotFound(
            f"There is no endpoint `{name.removeprefix(PREFIX)}` in {region}: `whetstone endpoints list` names "
            "those of Whetstone; of others give the name as AWS has it."
        ) from None

    # 2. Refuse one that does not serve.
    if description["EndpointStatus"] != "InService":
        why = f" ({reason.rstrip('.')})" if (reason := description.get("FailureReason")) else ""
        raise NotNow(f"The endpoint `{name}` is {description['EndpointStatus']}{why}, so it cannot be measured now.")

    # 3. Count its instances by type.
    types = {variant["VariantName"]: variant.get("InstanceType") for variant in configuration["ProductionVariants"]}
    running: Counter[str] = Counter()
    for variant in description.get("ProductionVariants", []):
        if (instance_type := types.get(variant["VariantName"])) is not None:
            running[instance_type] += variant.get("CurrentInstanceCount") or 0
    return ServingEndpoint(name, region, dict(running), own.get(TAG), served.get(ARTIFACT))


def prove_endpoint(endpoint: ServingEndpoint) -> list[Finding]:
    """Return what an answer and the log of one of our endpoints prove now; nothing of another, since nobody knows what
    it should serve.

    Raises what AWS refuses.
    """
    return Endpoints(endpoint.region).prove(endpoint.id, patience_s=0.0) if endpoint.id else []
