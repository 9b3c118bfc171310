"""Updates of an endpoint in place: what serves, what is proven, what is left, when they succeed, fail and are
interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.aws.sagemaker import Expired, Refused
from backend.domain.deploy import sagemaker_requests
from backend.domain.deploy.deployment import Deployment, Rollout
from backend.domain.errors import AccessRefused, NotNow
from backend.domain.evaluation.evidence.schema import Finding
from backend.launchers.deployments import DeployFailed, Deployments, EndpointDeleted, OtherVersionServes
from tests import pauses
from tests.buckets import keys
from tests.fakes.sagemaker.account import Account, Fault
from tests.fakes.sagemaker.pointed import aws, bucket, s3
from tests.helpers.deployment_cases import DRAFT, PLAIN
from tests.unit.launchers.sagemaker_endpoints import FILES, HERE, artifact, deployed, endpoints, left

pytestmark = pytest.mark.process

__all__ = ["artifact", "aws", "bucket", "endpoints", "s3"]
NEW = PLAIN.model_copy(update={**HERE, "artifact": "a-ffffffffffff", "name": "fp8"})
OLD = PLAIN.model_copy(update=HERE)


def updated(
    endpoints: Deployments, artifact: Path, deployment: Deployment = NEW, rollout: Rollout | None = None
) -> list[Finding]:
    files = {path: size for path, size in FILES.items() if deployment.draft or not path.startswith("draft/")}
    return endpoints.update(deployment, rollout or Rollout(), artifact, files, lambda line: None)


def serves(aws: Account, bucket: Any, deployment: Deployment) -> None:
    """That and nothing else, in service."""
    aws.clock.advance(3600)
    (row,) = aws.tables["endpoints"].values()
    assert row["EndpointConfigName"] == deployment.version and row["deleted"] is None
    assert list(aws.tables["models"]) == list(aws.tables["configurations"]) == [deployment.version]
    assert {key.split("/")[3] for key in keys(bucket, "weights")} == {deployment.artifact}


def test_an_update_serves_the_new_one_and_leaves_nothing_of_the_old(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    deployment = deployed(endpoints, artifact, OLD)
    findings = updated(endpoints, artifact, NEW, Rollout(alarms=("errors",), bake_s=300))
    assert [(each.what, each.proven) for each in findings] == [("answer", True), ("quantization", True)]
    (request,) = aws.requests_for("UpdateEndpoint")
    assert request["DeploymentConfig"]["AutoRollbackConfiguration"] == {"Alarms": [{"AlarmName": "errors"}]}
    shown = endpoints.show("chat")
    assert (shown.artifact, shown.variant, shown.since, shown.owner) == (
        "a-ffffffffffff",
        "fp8",
        deployment.since,
        "ann@example.org",
    )
    serves(aws, bucket, NEW)
    assert updated(endpoints, artifact, NEW) and len(aws.requests_for("UpdateEndpoint")) == 1, (
        "called again it finds it done"
    )
    endpoints.delete("chat")
    assert left(aws, bucket) == []


def test_another_instance_keeps_the_same_weights(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    deployed(endpoints, artifact, OLD)
    larger = OLD.model_copy(update={"instance": "ml.g6.24xlarge"})
    updated(endpoints, artifact, larger)
    serves(aws, bucket, larger)
    assert endpoints.show("chat").instance == "ml.g6.24xlarge"


def test_an_update_that_aws_takes_back_leaves_the_old_one_and_nothing_of_the_new(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    deployed(endpoints, artifact, OLD)
    aws.tables["update plan"] = {"ends": "RolledBack", "reason": "The alarm errors went off."}
    with pytest.raises(
        OtherVersionServes, match=r"AWS went back to what was served before: The alarm errors went off\."
    ):
        updated(endpoints, artifact)
    serves(aws, bucket, OLD)


def test_what_is_served_otherwise_than_deployed_is_gone_back_from(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    """The engine of the old one counted drafted tokens in the same log: those prove nothing of the new one."""
    deployed(endpoints, artifact, DRAFT, capacity=None)
    endpoints.prove("chat")
    aws.tables["container"] = {"ignores_draft": True}
    draft = DRAFT.model_copy(update={**HERE, "artifact": "a-ffffffffffff", "capacity": None})
    with pytest.raises(DeployFailed, match=r"It does not speculate.*What was served before serves on"):
        updated(endpoints, artifact, draft)
    serves(aws, bucket, DRAFT.model_copy(update={**HERE, "capacity": None}))


@pytest.mark.parametrize("ends", ["Failed", "UpdateRollbackFailed"])
def test_an_endpoint_that_an_update_breaks_is_left_for_a_person(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path, ends: str
) -> None:
    deployed(endpoints, artifact, OLD)
    aws.tables["update plan"] = {"ends": ends, "reason": "No capacity."}
    with pytest.raises(DeployFailed, match=f"The endpoint is {ends}: No capacity"):
        updated(endpoints, artifact)
    assert endpoints.show("chat").state == ends and len(aws.tables["configurations"]) == 2
    endpoints.delete("chat")
    assert left(aws, bucket) == []


@pytest.mark.parametrize("operation", ["CreateModel", "CreateEndpointConfig", "UpdateEndpoint"])
def test_what_is_refused_on_the_way_leaves_the_old_one(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path, operation: str
) -> None:
    deployed(endpoints, artifact, OLD)
    aws.faults.append(Fault("AccessDeniedException", operation))
    with pytest.raises(AccessRefused, match=operation):
        updated(endpoints, artifact)
    serves(aws, bucket, OLD)
    aws.faults.append(Fault("ValidationException", operation))
    with pytest.raises(Refused):
        updated(endpoints, artifact)
    serves(aws, bucket, OLD)


def test_a_lost_answer_and_a_late_list_begin_no_second_update(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses.skip(monkeypatch)
    deployed(endpoints, artifact, OLD)
    aws.faults += [Fault("lost", "UpdateEndpoint"), Fault(503, "DescribeEndpoint", times=6, after=2)]
    updated(endpoints, artifact)
    serves(aws, bucket, NEW)


def test_an_update_that_never_reached_aws_is_not_waited_for(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request was lost each time it was sent, which nobody can tell from a lost answer."""
    pauses.skip(monkeypatch)
    deployed(endpoints, artifact, OLD)
    aws.faults.append(Fault("drop", "UpdateEndpoint", times=9))
    began = aws.clock.now
    with pytest.raises(OtherVersionServes, match="AWS stayed at what was served before"):
        updated(endpoints, artifact)
    assert aws.clock.now - began < 200, "no longer than an update may take to be seen"
    serves(aws, bucket, OLD)


def test_credentials_that_expire_meanwhile_leave_it_to_the_same_command(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    deployed(endpoints, artifact, OLD)
    messages: list[str] = []
    aws.faults.append(Fault("ExpiredTokenException", "DescribeEndpoint", times=9, after=3))
    with pytest.raises(Expired):
        endpoints.update(NEW, Rollout(), artifact, {"model/config.json": 2}, messages.append)
    assert "same command again" in messages[-1]
    aws.faults.clear()
    assert updated(endpoints, artifact) and len(aws.requests_for("UpdateEndpoint")) == 1
    serves(aws, bucket, NEW)


def test_an_endpoint_that_somebody_deletes_meanwhile_leaves_nothing(aws: Account, bucket: Any, artifact: Path) -> None:
    def sleep(seconds: float) -> None:
        aws.clock.advance(seconds)
        if aws.requests_for("UpdateEndpoint"):
            aws.tables["endpoints"].clear()

    endpoints = Deployments("us-east-1", sleep=sleep)
    deployed(endpoints, artifact, OLD)
    with pytest.raises(EndpointDeleted):
        updated(endpoints, artifact)
    assert left(aws, bucket) == []


def test_one_that_is_changed_or_scales_by_itself_is_left_alone(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    deployed(endpoints, artifact)
    larger = DRAFT.model_copy(update={**HERE, "instance": "ml.g6.24xlarge"})
    with pytest.raises(NotNow, match=r"leave it on ml\.g6\.12xlarge, or deploy it under another name"):
        updated(endpoints, artifact, larger)
    other = NEW.model_copy(update={"artifact": "a-eeeeeeeeeeee"})
    for call in sagemaker_requests.update(other, Rollout()):
        endpoints._sagemaker.call(call.operation, **call.parameters)
    with pytest.raises(NotNow, match="is Updating"):
        updated(endpoints, artifact)
