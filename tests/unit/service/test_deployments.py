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
from tests.helpers.deployable_artifacts import ROLE, WANTED, artifact
from tests.helpers.unreadable_rows import command
from tests.homes import open_home
from tests.small_artifacts import CARD

__all__ = ["aws", "bucket", "s3"]

pytestmark = pytest.mark.process


@pytest.fixture
def home(aws: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workspace:
    """With AWS's two halves behind it, whose hours pass in no time, and nothing else."""
    pauses.skip(monkeypatch, aws.clock.advance)
    return open_home(tmp_path / "home", owner="ann")


def test_a_plan_is_the_recipe_on_the_instance(home: Workspace, aws: Account) -> None:
    artifact_id = artifact(home)
    planned = endpoints.plan(home, artifact_id, WANTED)
    assert (planned.id, planned.region, planned.owner, planned.quantized) == (
        artifact_id,
        "us-east-1",
        "ann",
        "compressed-tensors",
    )
    assert planned.serving.tensor_parallel == 2
    assert (
        endpoints.plan(home, artifact_id, WANTED.model_copy(update={"tensor_parallel": 4})).serving.tensor_parallel == 4
    )
    preview = endpoints.preview(home, planned)
    assert preview["usd_per_hour"] > 1 and [call["operation"] for call in preview["requests"]] == [
        "create_model",
        "create_endpoint_config",
        "create_endpoint",
    ]
    assert aws.log == [], "a plan asks nothing of AWS"


def test_an_artifact_whose_groups_no_gpu_kernel_takes_is_not_deployed(home: Workspace, aws: Account) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "heads": 4, "kv_heads": 2, "head_dim": 16}
    model = CARD.model_copy(update=sizes)
    small = Recipe.model_validate({"name": "int4", "steps": [{"quantize": {"method": "awq", "group_size": 16}}]})
    with pytest.raises(
        ImpossibleStack, match="cannot be served there: vLLM has no kernel for awq in groups of 16"
    ) as error:
        endpoints.plan(home, artifact(home, small, parent=model), WANTED)
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
    home: Workspace, changes: dict[str, Any], kind: type[WhetstoneError], words: str
) -> None:
    with pytest.raises(kind, match=words) as error:
        endpoints.plan(home, artifact(home), WANTED.model_copy(update=changes))
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_what_is_compiled_for_neuron_is_not_deployed_on_gpus(home: Workspace) -> None:
    with pytest.raises(ImpossibleStack, match="is compiled for Neuron, and these containers serve on NVIDIA GPUs"):
        endpoints.plan(home, artifact(home, parts=("model", "compiled")), WANTED)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"method": "custom", "proposer": "mine.Proposer"}, "code of your own"),
        ({"method": "ngram_adaptive"}, "`method: ngram_adapt"),
    ],
)
def test_what_proposes_by_a_class_is_not_in_a_vendors_container(
    home: Workspace, step: dict[str, Any], words: str
) -> None:
    recipe = Recipe.model_validate({"name": "made", "steps": [{"speculate": step}]})
    with pytest.raises(
        ImpossibleStack, match=f"proposes tokens by {words}.*serve it here, or deploy one with `method: ngram`"
    ):
        endpoints.plan(home, artifact(home, recipe, parts=("model",)), WANTED)


def test_weights_must_fit(home: Workspace) -> None:
    with pytest.raises(NotEnoughMemory, match=r"take 90\.0 GB, and 2 of ml\.g6\.12xlarge's 4 GPUs hold"):
        endpoints.plan(home, artifact(home, size=90_000_000_000), WANTED)


def test_the_command_deploys_proves_lists_and_deletes(
    home: Workspace, bucket: Any, aws: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact_id = artifact(home)
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
        assert command(home, monkeypatch, *requests, "--as", form) == 0
        assert words in str(json.loads(capsys.readouterr().out))
    assert command(home, monkeypatch, *requests, "--autoscale", "1:4:60", "--dry-run", "--json") == 0
    assert [call["operation"] for call in json.loads(capsys.readouterr().out)["requests"]][3:] == [
        "register_scalable_target",
        "put_scaling_policy",
    ]
    timed = ["--schedule", "cron(0 8 ? * MON-FRI *)=2:4", "--timezone", "Europe/Berlin", "--idle", "30"]
    assert command(home, monkeypatch, *requests, *timed, "--dry-run", "--json") == 0
    assert [call["operation"] for call in json.loads(capsys.readouterr().out)["requests"]][3:] == [
        "register_scalable_target",
        "put_scheduled_action",
        "put_metric_alarm",
    ]
    for wrong in (["--schedule", "daily=1:2"], ["--idle-topic", "x"], ["--idle", "5", "--idle-topic", "x"]):
        assert command(home, monkeypatch, *requests, *wrong) == 2 and wrong[-2] in capsys.readouterr().err
    assert command(home, monkeypatch, *requests, "--dry-run") == 0 and "USD per hour" in capsys.readouterr().out
    assert (
        command(home, monkeypatch, *requests, "--autoscale", "4:1:60") == 2
        and "--autoscale" in capsys.readouterr().err.lower()
    )
    assert aws.log == []
    assert command(home, monkeypatch, *requests, "--name", "chat", "--idle", "30", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["id"], document["state"], document["artifact"]) == ("chat", "InService", artifact_id)
    assert {each["what"]: each["proven"] for each in document["proofs"]} == {"answer": True, "quantization": True}
    assert keys(bucket, "weights") == [f"whetstone-endpoints/chat/{artifact_id}/model/config.json"]
    assert command(home, monkeypatch, "endpoints", "list") == 0
    aws.clock.advance(1800)
    assert "InService, idle" not in capsys.readouterr().out and command(home, monkeypatch, "endpoints", "list") == 0
    assert "InService, idle" in capsys.readouterr().out
    aws.faults += [Fault("AccessDeniedException", each) for each in ("DescribeAlarms", "GetMetricData")]
    assert command(home, monkeypatch, "endpoints", "list") == 0
    assert "In total" in (listed := capsys.readouterr().out) and re.search(r"1 x ml\.g6\.12xlarge +\?", listed)
    aws.clock.advance(time.time() - aws.clock.now)
    assert command(home, monkeypatch, "endpoints", "prove", "chat") == 0 and capsys.readouterr()
    assert command(home, monkeypatch, "endpoints", "list") == 0
    assert re.search(r"1 x ml\.g6\.12xlarge +1 ", capsys.readouterr().out)
    assert command(home, monkeypatch, "endpoints", "show", "chat") == 0
    assert "invoke_endpoint" in (shown := capsys.readouterr().out) and "USD so far" in shown
    assert "; 1 request in the last hour, 95% of them within 250 ms; 2 requests since it was created." in shown
    aws.tables["container"] = {"answer": " "}
    assert command(home, monkeypatch, "endpoints", "prove", "chat") == 1
    assert "does not serve what was deployed" in capsys.readouterr().err
    assert command(home, monkeypatch, "endpoints", "delete", "chat") == 0
    assert "deleted" in capsys.readouterr().out and keys(bucket, "weights") == []
    assert command(home, monkeypatch, "endpoints", "delete", "chat") == 2
    assert (
        command(home, monkeypatch, "endpoints", "list", "--json") == 0
        and json.loads(capsys.readouterr().out.split("\n", 0)[-1]) == []
    )
    assert [(each.action, each.kind, each.target) for each in audit.listing(home)] == [
        ("delete endpoint", "endpoint", "chat"),
        ("deploy", "endpoint", "chat"),
    ]


def test_the_cost_so_far_is_of_the_hours_since_it_was_made(home: Workspace, bucket: Any, aws: Account) -> None:
    planned = endpoints.plan(home, artifact(home), WANTED.model_copy(update={"instances": 2}))
    endpoints.deploy(home, planned, lambda line: None)
    (result,) = endpoints.listing(home)
    assert result.instances == 2 and result.usd_per_hour is not None and result.usd_so_far is not None
    hours = max(0.0, (datetime.now(UTC) - result.since).total_seconds() / 3600)
    assert result.usd_so_far == pytest.approx(result.usd_per_hour * hours, rel=0.01, abs=0.05)
    assert result.usd_per_hour == pytest.approx(endpoints.preview(home, planned)["usd_per_hour"])


def test_an_operator_deletes_what_is_theirs(home: Workspace, bucket: Any, aws: Account) -> None:
    ann, bob = (home.acting_as(Actor(name=name, role=Role.OPERATOR, origin="page")) for name in ("ann", "bob"))
    endpoints.deploy(ann, endpoints.plan(ann, artifact(home), WANTED), lambda line: None)
    (result,) = endpoints.listing(bob)
    with pytest.raises(NotAllowed, match="This endpoint is ann's"):
        endpoints.delete(bob, result.id)
    assert len(aws.tables["endpoints"]) == 1
    endpoints.delete(ann, result.id)
    assert endpoints.listing(ann) == []


def test_what_is_not_given_is_the_environments(home: Workspace, aws: Account) -> None:
    set_there = {
        "role": ROLE,
        "output": "s3://made/by/us/",
        "kms-key": "alias/weights",
        "subnets": "subnet-1, subnet-2",
        "security-groups": "sg-1",
        "region": "eu-west-1",
    }
    artifact_id = artifact(home)
    with pytest.raises(InvalidOptions, match="needs a role: give role, or set WHETSTONE_AWS_ROLE"):
        endpoints.plan(home, artifact_id, DeploymentRequest(instance="ml.g6.12xlarge"))
    there = replace(home, settings=home.settings.model_copy(update={"aws": set_there}))
    planned = endpoints.plan(there, artifact_id, DeploymentRequest(instance="ml.g6.12xlarge"))
    assert (planned.role, planned.bucket, planned.kms_key, planned.region) == (
        ROLE,
        "made/by/us",
        "alias/weights",
        "eu-west-1",
    )
    assert (planned.subnets, planned.security_groups) == (("subnet-1", "subnet-2"), ("sg-1",))
    verdict = endpoints.plan(
        there, artifact_id, WANTED.model_copy(update={"subnets": (), "security_groups": (), "region": "us-east-1"})
    )
    assert (verdict.bucket, verdict.subnets, verdict.region) == ("weights", (), "us-east-1")


def test_the_command_updates_in_place_with_what_is_there(
    home: Workspace, bucket: Any, aws: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = artifact(home), artifact(home, job="j-2")
    changed = WANTED.model_copy(update={"tensor_parallel": 4, "kms_key": "alias/weights", "name": "chat"})
    endpoints.deploy(home, endpoints.plan(home, first, changed), lambda line: None)
    requests = ["endpoints", "update", "chat", second]
    assert command(home, monkeypatch, *requests, "--alarm", "errors", "--watch", "5", "--dry-run", "--json") == 0
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
        command(home, monkeypatch, *requests, "--instance", "ml.g6.xlarge") == 2 and "has 1" in capsys.readouterr().err
    )
    bob = home.acting_as(Actor(name="bob", role=Role.OPERATOR, origin="page"))
    with pytest.raises(NotAllowed, match="This endpoint is ann's"):
        endpoints.update(bob, *endpoints.plan_update(bob, "chat", second, UpdateRequest()), print)
    assert aws.asked("UpdateEndpoint") == [] and len(aws.tables["models"]) == 1
    assert command(home, monkeypatch, *requests, "--instance", "ml.g6.24xlarge", "--json") == 0
    now = json.loads(capsys.readouterr().out)
    assert (now["artifact"], now["instance"], now["owner"]) == (second, "ml.g6.24xlarge", "ann")
    assert {each["what"]: each["proven"] for each in now["proofs"]} == {"answer": True, "quantization": True}
    assert keys(bucket, "weights") == [f"whetstone-endpoints/chat/{second}/model/config.json"]
    assert next(each.action for each in audit.listing(home)) == "update endpoint"
