"""Deploying an artifact by service and command line: what is planned, refused, made, shown with its cost, and taken
away."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import (
    ImpossibleStack,
    InvalidOptions,
    NotAllowed,
    NotEnoughMemory,
    NotFound,
    RequestError,
    WhetstoneError,
)
from backend.domain.recipe.recipe import Recipe
from backend.domain.roles import Actor, Role
from backend.service import Workspace
from backend.service.serving import endpoints
from backend.service.serving.endpoints import DeploymentRequest, UpdateRequest
from backend.service.studio import audit
from tests import pauses
from tests.buckets import keys
from tests.fakes.sagemaker.account import Account, Fault
from tests.fakes.sagemaker.pointed import aws, bucket, s3
from tests.helpers.deployable_artifacts import REQUEST, ROLE, artifact
from tests.helpers.unreadable_rows import command
from tests.homes import open_home
from tests.small_artifacts import CARD

__all__ = ["aws", "bucket", "s3"]

pytestmark = pytest.mark.process


@pytest.fixture
def home_with_aws(aws: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workspace:
    """With AWS's two halves behind it, whose hours pass in no time, and nothing else."""
    pauses.skip(monkeypatch, aws.clock.advance)
    return open_home(tmp_path / "home", owner="ann")


def test_a_plan_is_the_recipe_on_the_instance(home_with_aws: Workspace, aws: Account) -> None:
    artifact_id = artifact(home_with_aws)
    planned = endpoints.plan(home_with_aws, artifact_id, REQUEST)
    assert (planned.id, planned.region, planned.owner, planned.quantized) == (
        artifact_id,
        "us-east-1",
        "ann",
        "compressed-tensors",
    )
    assert planned.serving.tensor_parallel == 2
    assert (
        endpoints.plan(
            home_with_aws, artifact_id, REQUEST.model_copy(update={"tensor_parallel": 4})
        ).serving.tensor_parallel
        == 4
    )
    preview = endpoints.preview(home_with_aws, planned)
    assert preview["usd_per_hour"] > 1 and [call["operation"] for call in preview["requests"]] == [
        "create_model",
        "create_endpoint_config",
        "create_endpoint",
    ]
    assert aws.log == [], "a plan asks nothing of AWS"


def test_an_artifact_whose_groups_no_gpu_kernel_takes_is_not_deployed(home_with_aws: Workspace, aws: Account) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "heads": 4, "kv_heads": 2, "head_dim": 16}
    model = CARD.model_copy(update=sizes)
    small = Recipe.model_validate({"name": "int4", "steps": [{"quantize": {"method": "awq", "group_size": 16}}]})
    with pytest.raises(
        ImpossibleStack, match="cannot be served there: vLLM has no kernel for awq in groups of 16"
    ) as error:
        endpoints.plan(home_with_aws, artifact(home_with_aws, small, parent=model), REQUEST)
    assert str(error.value).endswith("not of 16.") and aws.log == []


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"instance": "ml.g6.13xlarge"}, NotFound, r"no instance `ml\.g6\.13xlarge`: the nearest are ml\.g6"),
        ({"instance": "ml.inf2.48xlarge"}, RequestError, "choose one with NVIDIA GPUs"),
        (
            {"instance": "ml.g6.xlarge"},
            RequestError,
            r"split over 2 GPUs, and ml\.g6\.xlarge has 1: give another tensor",
        ),
        ({"role": "serving"}, InvalidOptions, "Role .*must be a role such as"),
        ({"bucket": "s3://B"}, InvalidOptions, "Bucket .*BUCKET/PREFIX"),
        ({"name": "My One"}, InvalidOptions, "Name .*small letters"),
        ({"region": "cn-north-1"}, RequestError, "another account: give the address of one with image"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    home_with_aws: Workspace, changes: dict[str, Any], kind: type[WhetstoneError], words: str
) -> None:
    with pytest.raises(kind, match=words) as error:
        endpoints.plan(home_with_aws, artifact(home_with_aws), REQUEST.model_copy(update=changes))
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_what_is_compiled_for_neuron_is_not_deployed_on_gpus(home_with_aws: Workspace) -> None:
    with pytest.raises(ImpossibleStack, match="is compiled for Neuron, and these containers serve on NVIDIA GPUs"):
        endpoints.plan(home_with_aws, artifact(home_with_aws, parts=("model", "compiled")), REQUEST)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"method": "custom", "proposer": "mine.Proposer"}, "code of your own"),
        ({"method": "ngram_adaptive"}, "`method: ngram_adapt"),
    ],
)
def test_what_proposes_by_a_class_is_not_in_a_vendors_container(
    home_with_aws: Workspace, step: dict[str, Any], words: str
) -> None:
    recipe = Recipe.model_validate({"name": "made", "steps": [{"speculate": step}]})
    with pytest.raises(
        ImpossibleStack, match=f"proposes tokens by {words}.*serve it here, or deploy one with `method: ngram`"
    ):
        endpoints.plan(home_with_aws, artifact(home_with_aws, recipe, parts=("model",)), REQUEST)


def test_weights_must_fit(home_with_aws: Workspace) -> None:
    with pytest.raises(NotEnoughMemory, match=r"take 90\.0 GB, and 2 of ml\.g6\.12xlarge's 4 GPUs hold"):
        endpoints.plan(home_with_aws, artifact(home_with_aws, size=90_000_000_000), REQUEST)


def test_the_command_deploys_proves_lists_and_deletes(
    home_with_aws: Workspace,
    bucket: Any,
    aws: Account,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    artifact_id = artifact(home_with_aws)
    requests = [
        "deploy",
        artifact_id,
        "--to",
        "sagemaker",
        "--instance",
        "ml.g6.12xlarge",
        "--role",
        ROLE,
        "--bucket",
        "weights",
    ]
    for form, words in (
        ("cloudformation", "AWS::SageMaker::Model"),
        ("terraform", "aws_sagemaker_model"),
        ("policy", "iam:PassRole"),
    ):
        assert command(home_with_aws, monkeypatch, *requests, "--as", form) == 0
        assert words in str(json.loads(capsys.readouterr().out))
    assert command(home_with_aws, monkeypatch, *requests, "--autoscale", "1:4:60", "--dry-run", "--json") == 0
    assert [call["operation"] for call in json.loads(capsys.readouterr().out)["requests"]][3:] == [
        "register_scalable_target",
        "put_scaling_policy",
    ]
    timed = ["--schedule", "cron(0 8 ? * MON-FRI *)=2:4", "--timezone", "Europe/Berlin", "--idle", "30"]
    assert command(home_with_aws, monkeypatch, *requests, *timed, "--dry-run", "--json") == 0
    assert [call["operation"] for call in json.loads(capsys.readouterr().out)["requests"]][3:] == [
        "register_scalable_target",
        "put_scheduled_action",
        "put_metric_alarm",
    ]
    for wrong in (["--schedule", "daily=1:2"], ["--idle-topic", "x"], ["--idle", "5", "--idle-topic", "x"]):
        assert command(home_with_aws, monkeypatch, *requests, *wrong) == 2 and wrong[-2] in capsys.readouterr().err
    assert (
        command(home_with_aws, monkeypatch, *requests, "--dry-run") == 0 and "USD per hour" in capsys.readouterr().out
    )
    assert (
        command(home_with_aws, monkeypatch, *requests, "--autoscale", "4:1:60") == 2
        and "--autoscale" in capsys.readouterr().err.lower()
    )
    assert aws.log == []
    assert command(home_with_aws, monkeypatch, *requests, "--name", "chat", "--idle", "30", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["id"], document["state"], document["artifact"]) == ("chat", "InService", artifact_id)
    assert {each["what"]: each["proven"] for each in document["proofs"]} == {"answer": True, "quantization": True}
    assert keys(bucket, "weights") == [f"whetstone-endpoints/chat/{artifact_id}/model/config.json"]
    assert command(home_with_aws, monkeypatch, "endpoints", "list") == 0
    aws.clock.advance(1800)
    assert (
        "InService, idle" not in capsys.readouterr().out
        and command(home_with_aws, monkeypatch, "endpoints", "list") == 0
    )
    assert "InService, idle" in capsys.readouterr().out
    aws.faults += [Fault("AccessDeniedException", each) for each in ("DescribeAlarms", "GetMetricData")]
    assert command(home_with_aws, monkeypatch, "endpoints", "list") == 0
    assert "In total" in (listed := capsys.readouterr().out) and re.search(r"1 x ml\.g6\.12xlarge +\?", listed)
    aws.clock.advance(time.time() - aws.clock.now)
    assert command(home_with_aws, monkeypatch, "endpoints", "prove", "chat") == 0 and capsys.readouterr()
    assert command(home_with_aws, monkeypatch, "endpoints", "list") == 0
    assert re.search(r"1 x ml\.g6\.12xlarge +1 ", capsys.readouterr().out)
    assert command(home_with_aws, monkeypatch, "endpoints", "show", "chat") == 0
    assert "invoke_endpoint" in (shown := capsys.readouterr().out) and "USD so far" in shown
    assert "; 1 request in the last hour, 95% of them within 250 ms; 2 requests since it was created." in shown
    aws.tables["container"] = {"answer": " "}
    assert command(home_with_aws, monkeypatch, "endpoints", "prove", "chat") == 1
    assert "does not serve what was deployed" in capsys.readouterr().err
    assert command(home_with_aws, monkeypatch, "endpoints", "delete", "chat") == 0
    assert "deleted" in capsys.readouterr().out and keys(bucket, "weights") == []
    assert command(home_with_aws, monkeypatch, "endpoints", "delete", "chat") == 2
    assert (
        command(home_with_aws, monkeypatch, "endpoints", "list", "--json") == 0
        and json.loads(capsys.readouterr().out.split("\n", 0)[-1]) == []
    )
    assert [(each.action, each.kind, each.target) for each in audit.listing(home_with_aws)] == [
        ("delete endpoint", "endpoint", "chat"),
        ("deploy", "endpoint", "chat"),
    ]


def test_the_cost_so_far_is_of_the_hours_since_it_was_made(home_with_aws: Workspace, bucket: Any, aws: Account) -> None:
    planned = endpoints.plan(home_with_aws, artifact(home_with_aws), REQUEST.model_copy(update={"instances": 2}))
    endpoints.deploy(home_with_aws, planned, lambda line: None)
    (result,) = endpoints.listing(home_with_aws)
    assert result.instances == 2 and result.usd_per_hour is not None and result.usd_so_far is not None
    hours = max(0.0, (datetime.now(UTC) - result.since).total_seconds() / 3600)
    assert result.usd_so_far == pytest.approx(result.usd_per_hour * hours, rel=0.01, abs=0.05)
    assert result.usd_per_hour == pytest.approx(endpoints.preview(home_with_aws, planned)["usd_per_hour"])


def test_an_operator_deletes_what_is_theirs(home_with_aws: Workspace, bucket: Any, aws: Account) -> None:
    ann, bob = (home_with_aws.acting_as(Actor(name=name, role=Role.OPERATOR, origin="page")) for name in ("ann", "bob"))
    endpoints.deploy(ann, endpoints.plan(ann, artifact(home_with_aws), REQUEST), lambda line: None)
    (result,) = endpoints.listing(bob)
    with pytest.raises(NotAllowed, match="This endpoint is ann's"):
        endpoints.delete(bob, result.id)
    assert len(aws.tables["endpoints"]) == 1
    endpoints.delete(ann, result.id)
    assert endpoints.listing(ann) == []


def test_what_is_not_given_is_the_environments(home_with_aws: Workspace, aws: Account) -> None:
    set_there = {
        "role": ROLE,
        "output": "s3://made/by/us/",
        "kms-key": "alias/weights",
        "subnets": "subnet-1, subnet-2",
        "security-groups": "sg-1",
        "region": "eu-west-1",
    }
    artifact_id = artifact(home_with_aws)
    with pytest.raises(InvalidOptions, match="needs a role: give role, or set WHETSTONE_AWS_ROLE"):
        endpoints.plan(home_with_aws, artifact_id, DeploymentRequest(instance="ml.g6.12xlarge"))
    there = replace(home_with_aws, settings=home_with_aws.settings.model_copy(update={"aws": set_there}))
    planned = endpoints.plan(there, artifact_id, DeploymentRequest(instance="ml.g6.12xlarge"))
    assert (planned.role, planned.bucket, planned.kms_key, planned.region) == (
        ROLE,
        "made/by/us",
        "alias/weights",
        "eu-west-1",
    )
    assert (planned.subnets, planned.security_groups) == (("subnet-1", "subnet-2"), ("sg-1",))
    verdict = endpoints.plan(
        there, artifact_id, REQUEST.model_copy(update={"subnets": (), "security_groups": (), "region": "us-east-1"})
    )
    assert (verdict.bucket, verdict.subnets, verdict.region) == ("weights", (), "us-east-1")


def test_the_command_updates_in_place_with_what_is_there(
    home_with_aws: Workspace,
    bucket: Any,
    aws: Account,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second = artifact(home_with_aws), artifact(home_with_aws, job="j-2")
    changed = REQUEST.model_copy(update={"tensor_parallel": 4, "kms_key": "alias/weights", "name": "chat"})
    endpoints.deploy(home_with_aws, endpoints.plan(home_with_aws, first, changed), lambda line: None)
    requests = ["endpoints", "update", "chat", second]
    assert (
        command(home_with_aws, monkeypatch, *requests, "--alarm", "errors", "--watch", "5", "--dry-run", "--json") == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert [call["operation"] for call in document["requests"]] == [
        "create_model",
        "create_endpoint_config",
        "update_endpoint",
    ]
    shift = document["requests"][-1]["parameters"]["DeploymentConfig"]
    assert shift["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"] == {
        "Type": "ALL_AT_ONCE",
        "WaitIntervalInSeconds": 300,
    }
    assert shift["AutoRollbackConfiguration"] == {"Alarms": [{"AlarmName": "errors"}]}
    planned = document["deployment"]
    assert (planned["serving"]["tensor_parallel"], planned["kms_key"], planned["bucket"]) == (
        4,
        "alias/weights",
        "weights",
    )
    assert (
        command(home_with_aws, monkeypatch, *requests, "--instance", "ml.g6.xlarge") == 2
        and "has 1" in capsys.readouterr().err
    )
    bob = home_with_aws.acting_as(Actor(name="bob", role=Role.OPERATOR, origin="page"))
    with pytest.raises(NotAllowed, match="This endpoint is ann's"):
        endpoints.update(bob, *endpoints.plan_update(bob, "chat", second, UpdateRequest()), print)
    assert aws.requests_for("UpdateEndpoint") == [] and len(aws.tables["models"]) == 1
    assert command(home_with_aws, monkeypatch, *requests, "--instance", "ml.g6.24xlarge", "--json") == 0
    now = json.loads(capsys.readouterr().out)
    assert (now["artifact"], now["instance"], now["owner"]) == (second, "ml.g6.24xlarge", "ann")
    assert {each["what"]: each["proven"] for each in now["proofs"]} == {"answer": True, "quantization": True}
    assert keys(bucket, "weights") == [f"whetstone-endpoints/chat/{second}/model/config.json"]
    assert next(each.action for each in audit.listing(home_with_aws)) == "update endpoint"
