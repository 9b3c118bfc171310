"""Calls of SageMaker against the account on loopback: what each kind of failure becomes."""

from __future__ import annotations

from typing import Any

import pytest

from backend.aws.sagemaker import Busy, Expired, NameTaken, Refused, ResourceMissing, Service
from backend.domain.errors import AccessRefused
from tests import pauses
from tests.fakes.sagemaker.account import Account, Fault
from tests.fakes.sagemaker.pointed import aws, elsewhere, point

__all__ = ["aws"]

JOB: dict[str, Any] = {
    "OptimizationJobName": "j1",
    "RoleArn": "arn:aws:iam::123456789012:role/r",
    "ModelSource": {"S3": {"S3Uri": "s3://b/m/"}},
    "DeploymentInstanceType": "ml.g6.12xlarge",
    "OptimizationConfigs": [{"ModelQuantizationConfig": {"Image": "i"}}],
    "OutputConfig": {"S3OutputLocation": "s3://b/out/"},
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
}


def test_a_job_lives_by_the_accounts_clock(aws: Account) -> None:
    service = Service()
    service.call("create_optimization_job", **JOB)
    observed = []
    for _ in range(3):
        observed.append(service.call("describe_optimization_job", OptimizationJobName="j1")["OptimizationJobStatus"])
        aws.clock.advance(700)
    assert observed == ["STARTING", "INPROGRESS", "COMPLETED"]
    with pytest.raises(NameTaken, match="already exists"):
        service.call("create_optimization_job", **JOB)
    assert [page["OptimizationJobSummaries"] for page in service.pages("list_optimization_jobs", NameContains="x")] == [
        []
    ]


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Fault("AccessDeniedException"), AccessRefused, "need sagemaker:DescribeOptimizationJob"),
        (
            Fault("AccessDeniedException", message="u is not authorized to perform: iam:PassRole"),
            AccessRefused,
            "iam:PassRole",
        ),
        (Fault("ExpiredTokenException"), Expired, "have expired"),
        (Fault("UnrecognizedClientException"), AccessRefused, "does not accept the credentials"),
        (Fault("ThrottlingException", times=9), Busy, "is busy .ThrottlingException"),
        (Fault(503, times=9), Busy, "is busy"),
        (Fault("cut", times=9), Busy, "is busy .400"),
        (Fault("drop", times=9), Busy, "did not arrive"),
        (Fault("ValidationException", message="no such thing."), Refused, "no such thing.$"),
    ],
    ids=lambda value: str(getattr(value, "do", "")),
)
def test_a_failure_is_one_sentence(
    aws: Account, monkeypatch: pytest.MonkeyPatch, fault: Fault, kind: type[Exception], words: str
) -> None:
    pauses.skip(monkeypatch)
    aws.faults.append(fault)
    with pytest.raises(kind, match=words) as error:
        Service().call("describe_optimization_job", OptimizationJobName="j1")
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


def test_an_answer_that_is_cut_off(aws: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses.skip(monkeypatch)
    aws.faults.append(Fault("cut", times=9))
    with pytest.raises(Busy, match="broke off"):
        Service().call("create_optimization_job", **JOB)


def test_an_answer_that_is_cut_off_is_not_an_empty_one(aws: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the answer of ListTags has to be there, and an endpoint without tags is somebody else's."""
    pauses.skip(monkeypatch)
    arn = aws.arn("endpoint", "x")
    aws.tables["tags"][arn] = [{"Key": "a", "Value": "b"}]
    aws.faults.append(Fault("cut", times=9))
    with pytest.raises(Busy, match="broke off"):
        Service().pages("list_tags", ResourceArn=arn)


def test_a_fault_that_passes_is_not_seen(aws: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses.skip(monkeypatch)
    aws.faults.append(Fault("ThrottlingException", times=2))
    with pytest.raises(ResourceMissing, match="j1"):
        Service().call("describe_optimization_job", OptimizationJobName="j1")
    assert len(aws.log) == 3


def test_credentials_and_a_region_that_lack(aws: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(Refused, match="AWS_DEFAULT_REGION"):
        Service().call("list_optimization_jobs")
    service = Service(region="us-east-1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(AccessRefused, match="There are no AWS credentials"):
        service.call("list_optimization_jobs")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    assert service.call("list_optimization_jobs")["OptimizationJobSummaries"] == []


def test_what_botocore_or_the_service_does_not_take(aws: Account) -> None:
    with pytest.raises(Refused, match="Missing required parameter"):
        Service().call("create_optimization_job")
    with pytest.raises(Refused, match="enum value set"):
        Service().call("create_optimization_job", **{**JOB, "DeploymentInstanceType": "ml.zzz"})


@pytest.mark.process
def test_the_account_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    with elsewhere() as account:
        point(monkeypatch, tmp_path, account.url)
        Service().call("create_optimization_job", **JOB)
        account.pull("end", {"name": "j1", "ends": "FAILED", "reason": "No space."})
        assert Service().call("describe_optimization_job", OptimizationJobName="j1")["FailureReason"] == "No space."
        assert len(account.requests_for("CreateOptimizationJob")) == 1
