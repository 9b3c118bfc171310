"""Endpoints on SageMaker, against an account on loopback and moto's S3: the whole life, what fails, and what is
left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient

from backend.aws import objects
from backend.aws.sagemaker import Service
from backend.domain.deploy import iam_policy, sagemaker_requests
from backend.domain.deploy.deployment import Idle, Rollout, Scheduled
from backend.domain.deploy.endpoint_metrics import Counts, Traffic
from backend.domain.errors import AccessRefused, NotFound, NotNow, WhetstoneError
from backend.launchers.deployments import DeployFailed, Deployments
from backend.service.serving import playground
from backend.service.serving.playground import Question, Timing
from tests import pauses
from tests.buckets import keys
from tests.fakes.sagemaker.account import Account, Fault
from tests.fakes.sagemaker.pointed import aws, bucket, point, s3
from tests.fakes.sagemaker.shapes import moment
from tests.helpers.deployment_cases import DRAFT, PLAIN
from tests.unit.launchers.sagemaker_endpoints import FILES, HERE, IAM, artifact, deployed, endpoints, left

__all__ = ["artifact", "aws", "bucket", "endpoints", "s3"]

pytestmark = pytest.mark.process
WATCHED = DRAFT.model_copy(
    update={"schedule": (Scheduled(at="cron(0 8 ? * MON-FRI *)", minimum=2, maximum=4),), "idle": Idle(minutes=30)}
)
Deploy = Callable[..., Any]


def test_the_whole_life_leaves_nothing_and_calls_what_the_policy_allows(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: set[str] = set()
    plain = BaseClient._make_api_call

    def record_call(client: Any, operation: str, parameters: dict[str, Any]) -> Any:
        service = client.meta.service_model.signing_name
        called.add(f"{NAMES.get(service, service)}:{operation}")
        return plain(client, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", record_call)
    deployment = deployed(endpoints, artifact, WATCHED)
    assert (deployment.state, deployment.instance, deployment.instances, deployment.owner) == (
        "InService",
        "ml.g6.12xlarge",
        1,
        "ann@example.org",
    )
    assert [
        path.removeprefix("team/whetstone-endpoints/chat/a-0123456789ab/") for path in keys(bucket, "weights")
    ] == sorted(FILES)
    assert list(aws.tables["policies"]) == ["whetstone-chat-load"]
    assert [each.id for each in endpoints.listing()] == ["chat"]
    assert [(each.what, each.proven) for each in endpoints.prove("chat")] == [
        ("answer", True),
        ("quantization", True),
        ("speculation", True),
    ]
    assert list(playground.stream(f"sagemaker://us-east-1/{deployment.name}", "model", Question("a"), Timing()))
    called |= {f"sagemaker:{each.operation}" for each in aws.log if each.operation.startswith("InvokeEndpoint")}
    assert list(aws.tables["actions"]) == ["whetstone-chat-1"] and endpoints.alarms() == {"whetstone-chat-idle": False}
    aws.clock.advance(1800)
    assert endpoints.alarms() == {"whetstone-chat-idle": True}
    assert endpoints.traffic(deployment, moment(aws.clock.now)).since == Counts(requests=2, errors=0)
    again = deployed(endpoints, artifact, WATCHED)
    assert (
        again.since == deployment.since
        and len(aws.requests_for("CreateEndpoint")) == 2
        and len(aws.tables["endpoints"]) == 1
    )
    with pytest.raises(NotNow, match="scales by itself"):
        endpoints.update(
            DRAFT.model_copy(update={**HERE, "instance": "ml.g5.12xlarge"}), Rollout(), artifact, FILES, print
        )
    newer = DRAFT.model_copy(update={**HERE, "artifact": "a-ffffffffffff"})
    endpoints.update(newer, Rollout(), artifact, FILES, lambda line: None)
    objects.Objects("weights")._client.create_multipart_upload(Bucket="weights", Key=f"{DRAFT.key}model/half")
    endpoints.delete("chat")
    assert left(aws, bucket) == []
    with pytest.raises(NotFound, match="There is no endpoint `chat`"):
        endpoints.delete("chat")
    allowed = {each for one in iam_policy.document(WATCHED)["Statement"] for each in one["Action"]}
    assert {IAM.get(each, each) for each in called} | OF_AWS_ITSELF == allowed


NAMES = {"monitoring": "cloudwatch"}
OF_AWS_ITSELF = {"iam:PassRole", "sagemaker:AddTags", "cloudwatch:TagResource", "s3:ListMultipartUploadParts"}
"""Checked within a creation with a role and tags; parts are only listed where an upload goes on."""


def test_what_was_asked_is_counted_since_it_was_made_and_of_the_last_hour(
    aws: Account, endpoints: Deployments, artifact: Path
) -> None:
    deployment = deployed(endpoints, artifact, PLAIN)
    body = {"model": "model", "prompt": "a", "max_tokens": 4}
    assert endpoints.traffic(deployment, moment(aws.clock.now)) == Traffic(since=NONE, hour=NONE, p95_ms=None)
    for day in (0, 20, 80):  # as long as CloudWatch keeps minutes, five minutes, hours
        aws.clock.advance(day * 86400)
        endpoints.ask(deployment.name, body)
    aws.clock.advance(3700)
    for seconds in (0.2, 1.5):
        aws.tables["container"] = {"seconds": seconds}
        endpoints.ask(deployment.name, body)
    aws.tables["container"] = {"status": 503}
    with pytest.raises(WhetstoneError):
        endpoints.ask(deployment.name, body)
    traffic = endpoints.traffic(deployment, moment(aws.clock.now))
    assert traffic == Traffic(since=Counts(requests=6, errors=1), hour=Counts(requests=3, errors=1), p95_ms=1500.0)
    earlier = moment(aws.clock.now - 200 * 86400)
    assert endpoints.traffic(deployment, earlier).since == NONE, (
        "a clock that is behind AWS's asks for a minute all the same"
    )


NONE = Counts(requests=0, errors=0)


def test_an_endpoint_that_fails_says_why_and_leaves_nothing(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    aws.tables["endpoint plan"] = {
        "ends": "Failed",
        "reason": "The primary container did not pass the ping health check.",
    }
    with pytest.raises(DeployFailed, match="Failed: The primary container did not pass the ping health check"):
        deployed(endpoints, artifact)
    assert left(aws, bucket) == []


@pytest.mark.parametrize(
    "operation", ["CreateModel", "CreateEndpointConfig", "CreateEndpoint", "DescribeEndpoint", "PutScalingPolicy"]
)
def test_what_is_refused_on_the_way_leaves_nothing(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path, operation: str
) -> None:
    aws.faults.append(Fault("AccessDeniedException", operation, after=2 if operation == "DescribeEndpoint" else 0))
    with pytest.raises(AccessRefused, match=operation):
        deployed(endpoints, artifact)
    assert left(aws, bucket) == []


def test_an_interrupt_while_it_is_made_takes_it_back(aws: Account, bucket: Any, artifact: Path) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        aws.clock.advance(seconds)
        waited.append(seconds)
        if len(waited) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deployed(Deployments("us-east-1", sleep=sleep), artifact)
    assert left(aws, bucket) == [] and aws.requests_for("DeleteEndpoint")


def test_busy_answers_and_late_lists_are_waited_out(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    pauses.skip(monkeypatch)
    aws.faults += [
        Fault("ValidationException", "DescribeEndpoint", times=2, after=1, message='Could not find endpoint "x".'),
        Fault("ThrottlingException", "DescribeEndpoint", times=6),
        Fault("lost", "CreateEndpoint"),
    ]
    assert deployed(endpoints, artifact, PLAIN).state == "InService" and len(aws.tables["endpoints"]) == 1


def test_what_aws_does_not_see_yet_is_waited_for(aws: Account, endpoints: Deployments, artifact: Path) -> None:
    """It refuses what names something that was made a moment ago, and lists it late."""
    unseen = {"message": 'Could not find endpoint configuration "x".'}
    aws.faults += [
        Fault("ValidationException", each, times=2, **unseen) for each in ("CreateEndpoint", "UpdateEndpoint")
    ]
    assert deployed(endpoints, artifact, PLAIN).state == "InService" and len(aws.requests_for("DeleteModel")) == 0
    newer = PLAIN.model_copy(update={**HERE, "artifact": "a-ffffffffffff"})
    endpoints.update(newer, Rollout(), artifact, {"model/config.json": 2}, print)
    assert endpoints.show("chat").artifact == "a-ffffffffffff"
    aws.faults.append(Fault("ValidationException", "CreateEndpoint", times=99, **unseen))
    with pytest.raises(NotFound):
        deployed(endpoints, artifact, PLAIN, id="other")


def test_what_was_made_a_moment_ago_is_found_by_its_deletion(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    """A client that was killed before it had made the endpoint, and a list that lacks what it did make."""
    chosen = PLAIN.model_copy(update=HERE)
    bucket.put_object(Bucket="weights", Key=f"{chosen.key}model/config.json", Body=b"{}")
    aws.late_s = 12.0
    for call in sagemaker_requests.content(chosen):
        Service().call(call.operation, **call.parameters)
    endpoints.delete("chat")
    assert left(aws, bucket) == []


def test_what_goes_with_an_endpoint_is_what_the_last_deploy_said(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    """And a deploy of what is in service already takes nothing of it away where it fails."""
    deployed(endpoints, artifact, WATCHED)
    deployed(endpoints, artifact, WATCHED, schedule=(), idle=None)
    assert not aws.tables["actions"] and not aws.tables["alarms"] and aws.tables["policies"]
    aws.faults.append(Fault("AccessDeniedException", "PutMetricAlarm"))
    with pytest.raises(AccessRefused, match="cloudwatch:PutMetricAlarm"):
        deployed(endpoints, artifact, WATCHED)
    assert endpoints.show("chat").state == "InService"


def test_what_goes_with_an_endpoint_goes_where_somebody_else_deleted_it(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    deployed(endpoints, artifact, WATCHED)
    aws.tables["endpoints"].clear()
    endpoints.delete("chat")
    assert left(aws, bucket) == []


def test_a_new_endpoint_that_is_not_found_yet_is_deleted(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    deployed(endpoints, artifact, PLAIN)
    aws.faults.append(Fault("ValidationException", "DescribeEndpoint", message='Could not find endpoint "x".'))
    endpoints.delete("chat")
    assert left(aws, bucket) == []


def test_a_deletion_that_was_killed_finds_the_weights_when_it_is_called_again(
    aws: Account, bucket: Any, endpoints: Deployments, artifact: Path
) -> None:
    deployed(endpoints, artifact, PLAIN)
    aws.faults.append(Fault("AccessDeniedException", "DeleteModel"))
    with pytest.raises(AccessRefused):
        endpoints.delete("chat")
    bucket.put_object(Bucket="weights", Key=f"{PLAIN.key}model/late", Body=b"0")
    endpoints.delete("chat")
    assert left(aws, bucket) == []


def test_what_cannot_be_taken_back_is_said(aws: Account, endpoints: Deployments, artifact: Path) -> None:
    aws.faults += [
        Fault("AccessDeniedException", "CreateEndpoint"),
        Fault("ExpiredTokenException", "ListModels", times=9),
    ]
    with pytest.raises(DeployFailed, match=r"may cost money.*whetstone endpoints delete chat"):
        deployed(endpoints, artifact)


def test_a_name_that_serves_something_else_is_not_touched(aws: Account, endpoints: Deployments, artifact: Path) -> None:
    deployed(endpoints, artifact, PLAIN)
    with pytest.raises(NotNow, match=r"chat is served already, as a-0123456789ab on ml\.g6\.12xlarge"):
        deployed(endpoints, artifact, PLAIN, instance="ml.g5.xlarge")
    assert endpoints.show("chat").state == "InService"


def test_what_is_not_ours_is_neither_listed_nor_deleted(aws: Account, endpoints: Deployments, artifact: Path) -> None:
    deployed(endpoints, artifact, PLAIN)
    for arn in aws.tables["tags"]:
        aws.tables["tags"][arn] = []
    assert endpoints.listing() == []
    with pytest.raises(NotFound):
        endpoints.delete("chat")
    assert len(aws.tables["endpoints"]) == len(aws.tables["models"]) == 1


def test_a_draft_that_the_engine_ignores_is_seen(aws: Account, endpoints: Deployments, artifact: Path) -> None:
    aws.tables["container"] = {"ignores_draft": True, "quantization": "None", "answer": " "}
    deployed(endpoints, artifact)
    evidence = endpoints.prove("chat")
    assert [each.proven for each in evidence] == [False, False, False]
    assert evidence[2].words == "It does not speculate: the engine started without the draft."
    aws.tables["logs"].clear()
    proof = endpoints.prove("chat")
    assert [each.proven for each in proof] == [False, None, None] and all(
        "cannot be checked" in each.words for each in proof[1:]
    )


def test_the_account_is_the_only_one_that_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A region that nobody gave is asked for in a sentence."""
    from backend.aws.sagemaker import Refused
    from backend.launchers.endpoints import home_region

    point(monkeypatch, tmp_path, "http://127.0.0.1:9")
    assert home_region(None) == "us-east-1" and home_region("eu-west-1") == "eu-west-1"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert boto3.Session().region_name is None
    with pytest.raises(Refused, match="No AWS region is given"):
        home_region(None)
