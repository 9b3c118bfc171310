"""One endpoint of SageMaker as something to ask, whoever made it: what AWS tells of it, and what can be proven."""

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
    """`instances`: how many of which run; empty of a serverless one. `id` and `artifact` are None where it is not ours.
    An update changes the configuration, so that says which artifact is served."""

    name: str
    region: str
    instances: dict[str, int]
    id: str | None
    artifact: str | None


def resolve_endpoint(name: str, region: str) -> ServingEndpoint:
    """Of that name, or the one that Whetstone calls so. Raises NotFound, NotNow where it does not serve, and what AWS
    refuses."""
    sagemaker = Service("sagemaker", region)
    try:
        stated = sagemaker.call("describe_endpoint", EndpointName=name)
        configuration = sagemaker.call(
            "describe_endpoint_config", EndpointConfigName=stated.get("EndpointConfigName", name)
        )
        own, served = (read_tags(sagemaker, arn) for arn in (stated["EndpointArn"], configuration["EndpointConfigArn"]))
    except ResourceMissing:
        if not name.startswith(PREFIX):
            return resolve_endpoint(PREFIX + name, region)
        raise NotFound(
            f"There is no endpoint `{name.removeprefix(PREFIX)}` in {region}: `whetstone endpoints list` names those of "
            "Whetstone; of others give the name as AWS has it."
        ) from None
    if stated["EndpointStatus"] != "InService":
        why = f" ({reason.rstrip('.')})" if (reason := stated.get("FailureReason")) else ""
        raise NotNow(f"The endpoint `{name}` is {stated['EndpointStatus']}{why}, so it cannot be measured now.")
    kinds = {each["VariantName"]: each.get("InstanceType") for each in configuration["ProductionVariants"]}
    running: Counter[str] = Counter()
    for each in stated.get("ProductionVariants", []):
        if (kind := kinds.get(each["VariantName"])) is not None:
            running[kind] += each.get("CurrentInstanceCount") or 0
    return ServingEndpoint(name, region, dict(running), own.get(TAG), served.get(ARTIFACT))


def prove_endpoint(endpoint: ServingEndpoint) -> list[Finding]:
    """Of an endpoint of ours what its answer and its log prove now; none of another, of which it is not known what it
    should be.

    Raises what AWS refuses."""
    return Endpoints(endpoint.region).prove(endpoint.id, patience_s=0.0) if endpoint.id else []
