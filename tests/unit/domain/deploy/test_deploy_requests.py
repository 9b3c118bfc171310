"""The exact requests of a deployment, and the same as text: golden files, held to botocore's models and to the
policy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator
from pydantic import ValidationError

from backend.domain.deploy import iam_policy, sagemaker_requests, templates
from backend.domain.deploy.container import image
from backend.domain.deploy.deployment import Capacity, Deployment, Idle, Rollout, Scheduled, is_version
from tests.fakes.sagemaker import shapes
from tests.helpers.deployment_cases import CASES, DRAFT, PLAIN, TOPIC

GOLDEN = Path(__file__).parent / "golden"


def calls(deployment: Deployment) -> tuple[sagemaker_requests.Call, ...]:
    """Of its whole life."""
    updated = sagemaker_requests.update(deployment, Rollout(alarms=("errors",), bake_s=300))
    return (*sagemaker_requests.create(deployment), *sagemaker_requests.around(deployment), updated[-1])


@pytest.mark.parametrize("name", CASES)
def test_requests_are_the_golden_ones_and_botocore_takes_them(name: str) -> None:
    created = [call._asdict() for call in calls(CASES[name])]
    assert created == json.loads((GOLDEN / f"{name}.json").read_text())
    for service, operation, parameters in calls(CASES[name]):
        model = botocore.session.get_session().get_service_model(service)
        called = "".join(word.capitalize() for word in operation.split("_"))
        report = ParamValidator().validate(parameters, model.operation_model(called).input_shape)
        assert not report.has_errors(), report.generate_report()


@pytest.mark.parametrize("name", CASES)
def test_values_are_among_those_that_the_service_knows(name: str) -> None:
    """botocore itself checks no enum and no pattern."""
    for service, operation, parameters in calls(CASES[name]):
        called = "".join(word.capitalize() for word in operation.split("_"))
        shapes.check(parameters, shapes.model(service, called).input_shape)


@pytest.mark.parametrize("name", CASES)
def test_no_variable_names_a_quantization(name: str) -> None:
    environment = sagemaker_requests.model(CASES[name])["PrimaryContainer"]["Environment"]
    assert not [variable for variable in environment if "QUANTI" in variable]


def test_a_draft_is_staged_where_every_engine_of_the_container_is_told_to_look() -> None:
    """aws/sagemaker-python-sdk#6143: a draft was staged and the engine ignored it."""
    container = sagemaker_requests.model(DRAFT)["PrimaryContainer"]
    (staged,) = container["AdditionalModelDataSources"]
    place = f"/opt/ml/additional-model-data-sources/{staged['ChannelName']}"
    assert staged["S3DataSource"]["S3Uri"] == "s3://weights/team/whetstone-endpoints/chat/a-0123456789ab/draft/"
    environment = container["Environment"]
    assert json.loads(environment["OPTION_SPECULATIVE_CONFIG"])["model"] == place
    assert environment["OPTION_SPECULATIVE_DRAFT_MODEL"] == place
    other = sagemaker_requests.model(CASES["vllm-draft"])["PrimaryContainer"]["Environment"]
    assert json.loads(other["SM_VLLM_SPECULATIVE_CONFIG"])["model"] == place


def test_names_follow_from_id_and_content_alone() -> None:
    assert PLAIN.version == PLAIN.model_copy(update={"owner": "bob", "capacity": DRAFT.capacity}).version
    assert PLAIN.version == CASES["lmi-timed"].version != CASES["lmi-private"].version
    assert PLAIN.version != PLAIN.model_copy(update={"instance": "ml.g5.xlarge"}).version
    assert PLAIN.version != PLAIN.model_copy(update={"host": "al2023-ami-sagemaker-inference-gpu-5"}).version, (
        "a host of a later release is another configuration, or Terraform's new one has the name of the one it replaces"
    )
    longest = PLAIN.model_copy(update={"id": "x" * 32})
    assert len(longest.version) <= 63 and is_version(longest.version, longest.endpoint)
    assert not is_version("whetstone-chat-two-0123abcd", "whetstone-chat")


def test_what_no_request_may_have_is_refused() -> None:
    for wrong in (
        {"id": "Chat"},
        {"id": "a--b"},
        {"id": "x" * 33},
        {"role": "serving"},
        {"region": "europe"},
        {"bucket": "s3://b"},
        {"subnets": ("subnet-1",)},
    ):
        with pytest.raises(ValidationError):
            Deployment.model_validate(PLAIN.model_dump() | wrong)
    with pytest.raises(ValidationError, match="fewer than at least"):
        Capacity(minimum=2, maximum=1, invocations=1)
    for at, most in (("daily", 1), ("cron(0 8 ? * MON-FRI *)", 0)):
        with pytest.raises(ValidationError):
            Scheduled(at=at, minimum=1, maximum=most)
    with pytest.raises(ValidationError):
        Idle(minutes=30, topic="me@example.org")
    assert image("lmi", "cn-north-1") is None
    odd = PLAIN.model_copy(update={"name": "a*b;c" + "x" * 300})
    assert odd.marks["whetstone:name"].startswith("a_b_c") and len(odd.marks["whetstone:name"]) == 256


def walked(value: Any) -> Iterator[Any]:
    yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walked(each)


@pytest.mark.parametrize("name", CASES)
def test_cloudformation_says_the_same_and_names_only_what_it_has(name: str) -> None:
    case = CASES[name]
    template = json.loads(templates.cloudformation(case))
    resources = template["Resources"]
    kinds = sorted(each["Type"] for each in resources.values())
    scaled = ["AWS::ApplicationAutoScaling::ScalableTarget", "AWS::ApplicationAutoScaling::ScalingPolicy"]
    assert [kind for kind in kinds if "Scaling" in kind] == (
        scaled if case.capacity else scaled[:1] if case.schedule else []
    )
    assert ("AWS::CloudWatch::Alarm" in kinds) == (case.idle is not None)
    for each in walked(template):
        if isinstance(each, dict) and {"Ref", "Fn::GetAtt"} & each.keys():
            assert (each.get("Ref") or each["Fn::GetAtt"][0]) in resources
    variant = resources["Configuration"]["Properties"]["ProductionVariants"][0]
    expected = sagemaker_requests.variant(case)
    assert {key: value for key, value in variant.items() if key != "ModelName"} == {
        k: v for k, v in expected.items() if k != "ModelName"
    }
    reported = environment_of(resources["Model"]["Properties"]["PrimaryContainer"]["Environment"])
    assert reported == environment_of(sagemaker_requests.model(case)["PrimaryContainer"]["Environment"])


def environment_of(variables: dict[str, str]) -> dict[str, str]:
    """With the places of the weights as words: a template has both below one."""
    places = {
        "/opt/ml/additional-model-data-sources/draft": "DRAFT",
        "/opt/ml/model/draft": "DRAFT",
        "/opt/ml/model/model": "MODEL",
    }
    values = {}
    for name, value in variables.items():
        for place, word in places.items():
            value = value.replace(place, word)
        values[name] = re.sub(r"^/opt/ml/model$", "MODEL", value)
    return values


@pytest.mark.parametrize("name", CASES)
def test_terraform_says_the_same_and_refers_only_to_what_it_has(name: str) -> None:
    case = CASES[name]
    document = json.loads(templates.terraform(case))
    resources = document["resource"]
    for text in (each for each in walked(document) if isinstance(each, str)):
        for kind, own, _ in re.findall(r"\$\{(\w+)\.(\w+)\.(\w+)\}", text):
            assert own in resources[kind]
    assert ("aws_appautoscaling_policy" in resources) == (case.capacity is not None)
    assert len(resources.get("aws_appautoscaling_scheduled_action", {})) == len(case.schedule)
    assert ("aws_cloudwatch_metric_alarm" in resources) == (case.idle is not None)
    variant = resources["aws_sagemaker_endpoint_configuration"]["configuration"]["production_variants"][0]
    assert variant["instance_type"] == case.instance and variant["initial_instance_count"] == 1
    assert variant["routing_config"] == [{"routing_strategy": "LEAST_OUTSTANDING_REQUESTS"}]
    environment = resources["aws_sagemaker_model"]["model"]["primary_container"]["environment"]
    assert environment_of(environment) == environment_of(
        sagemaker_requests.model(case)["PrimaryContainer"]["Environment"]
    )
    assert resources["aws_sagemaker_model"]["model"]["tags"] == case.marks


WHOLE_ARN = re.compile(r"arn:aws:(s3::|[a-z-]+:[a-z0-9-]*:[0-9]{12}):.+")
"""Names the service and, but for a bucket, the account."""


def test_the_policy_names_no_more_than_one_endpoint() -> None:
    """Which calls it has is compared with those that are made, in tests/unit/launchers/test_endpoints.py."""
    for statement in iam_policy.document(DRAFT)["Statement"]:
        wide = statement["Resource"] == ["*"]
        assert wide == (statement["Sid"] in {"Lists", "Scaling", "Watch"})
        assert all("*" not in action for action in statement["Action"])
        assert wide or all(WHOLE_ARN.fullmatch(name) for name in statement["Resource"])
    assert "PutScalingPolicy" not in iam_policy.text(PLAIN) and "PutScalingPolicy" in iam_policy.text(DRAFT)
    timed = iam_policy.text(CASES["lmi-timed"])
    assert "PutScheduledAction" in timed and "PutMetricAlarm" in timed and "PutScalingPolicy" not in timed


def test_a_schedule_and_an_alarm_are_the_same_in_a_template() -> None:
    timed = CASES["lmi-timed"]
    resources = json.loads(templates.cloudformation(timed))["Resources"]
    first, second = resources["Capacity"]["Properties"]["ScheduledActions"]
    assert first == {
        "ScheduledActionName": "whetstone-chat-1",
        "Schedule": "cron(0 8 ? * MON-FRI *)",
        "Timezone": "Europe/Berlin",
        "ScalableTargetAction": {"MinCapacity": 2, "MaxCapacity": 4},
    }
    assert second["ScheduledActionName"] == "whetstone-chat-2"
    assert resources["Idle"]["Properties"] == sagemaker_requests.alarm(timed)
    blocks = json.loads(templates.terraform(timed))["resource"]
    action = blocks["aws_appautoscaling_scheduled_action"]["at_1"]
    assert (action["name"], action["schedule"], action["timezone"], action["scalable_target_action"]) == (
        "whetstone-chat-1",
        "cron(0 8 ? * MON-FRI *)",
        "Europe/Berlin",
        {"min_capacity": 2, "max_capacity": 4},
    )
    alarm = blocks["aws_cloudwatch_metric_alarm"]["idle"]
    assert (alarm["threshold"], alarm["treat_missing_data"], alarm["alarm_actions"]) == (1.0, "breaching", [TOPIC])
    assert alarm["dimensions"]["VariantName"] == "AllTraffic"


def test_what_an_update_keeps_is_read_from_what_was_made() -> None:
    for case in CASES.values():
        model, configuration, *_ = (call.parameters for call in sagemaker_requests.create(case))
        content = sagemaker_requests.read(model, configuration)
        assert content.pop("tensor_parallel") == case.serving.tensor_parallel
        assert content == {name: getattr(case, name) for name in content}


def test_a_key_is_granted_by_its_own_name_alone() -> None:
    private = CASES["lmi-private"]
    (granted,) = [each for each in iam_policy.document(private)["Statement"] if each["Sid"] == "Key"]
    assert granted["Condition"] == {"ForAnyValue:StringEquals": {"kms:ResourceAliases": "alias/weights"}}
    by_id = private.model_copy(update={"kms_key": "1234abcd"})
    assert by_id.key_arn == "arn:aws:kms:eu-central-1:123456789012:key/1234abcd"
    assert "kms:" not in iam_policy.text(PLAIN)
    document = json.loads(templates.terraform(private))["resource"]
    assert document["aws_sagemaker_endpoint_configuration"]["configuration"]["kms_key_arn"] == private.key_arn
    assert document["aws_sagemaker_model"]["model"]["vpc_config"] == {
        "security_group_ids": ["sg-1"],
        "subnets": ["subnet-1", "subnet-2"],
    }
    resources = json.loads(templates.cloudformation(private))["Resources"]
    assert resources["Configuration"]["Properties"]["KmsKeyId"] == "alias/weights"
    assert resources["Model"]["Properties"]["VpcConfig"]["Subnets"] == ["subnet-1", "subnet-2"]
