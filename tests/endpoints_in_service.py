"""An endpoint of the fake account that is in service, made by the calls of a deployment and without one."""

from __future__ import annotations

from typing import Any

from backend.domain.deploy import sagemaker_requests
from backend.domain.deploy.deployment import Deployment
from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.endpoints import create_configuration, create_endpoint, create_model

MAKE = {
    "create_model": create_model,
    "create_endpoint_config": create_configuration,
    "create_endpoint": create_endpoint,
}


def in_service(account: Account, deployment: Deployment, **container: Any) -> str:
    """Its name; `container` is what stands behind it, as the fake's lever has it."""
    account.tables["container"] |= container
    for call in sagemaker_requests.create(deployment):
        MAKE[call.operation](account, call.parameters)
    account.clock.advance(3600)
    return deployment.endpoint
