"""The deployment as text by others' rules: CloudFormation by cfn-lint, Terraform by the schema of its provider."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cfnlint.api import lint

from backend.domain.deploy import templates
from backend.domain.deploy.deployment import Deployment
from tests.helpers.deployment_cases import CASES

SCHEMA: dict[str, tuple[str, str]] = {
    "aws_sagemaker_model": (
        "execution_role_arn primary_container",
        "name container enable_network_isolation inference_execution_config tags vpc_config",
    ),
    "aws_sagemaker_model/primary_container": (
        "image",
        "additional_model_data_source container_hostname environment image_config inference_specification_name mode "
        "model_data_source model_data_url model_package_name multi_model_config",
    ),
    "aws_sagemaker_model/primary_container/model_data_source": ("s3_data_source", ""),
    "aws_sagemaker_model/primary_container/model_data_source/s3_data_source": (
        "compression_type s3_data_type s3_uri",
        "model_access_config",
    ),
    "aws_sagemaker_model/vpc_config": ("security_group_ids subnets", ""),
    "aws_sagemaker_endpoint_configuration": (
        "production_variants",
        "async_inference_config data_capture_config execution_role_arn kms_key_arn name name_prefix "
        "shadow_production_variants tags",
    ),
    "aws_sagemaker_endpoint_configuration/production_variants": (
        "model_name",
        "accelerator_type container_startup_health_check_timeout_in_seconds core_dump_config enable_ssm_access "
        "inference_ami_version initial_instance_count initial_variant_weight instance_type managed_instance_scaling "
        "model_data_download_timeout_in_seconds routing_config serverless_config variant_name volume_size_in_gb",
    ),
    "aws_sagemaker_endpoint_configuration/production_variants/routing_config": ("routing_strategy", ""),
    "aws_sagemaker_endpoint": ("endpoint_config_name", "deployment_config name tags"),
    "aws_appautoscaling_target": (
        "max_capacity min_capacity resource_id scalable_dimension service_namespace",
        "role_arn suspended_state tags",
    ),
    "aws_appautoscaling_policy": (
        "name resource_id scalable_dimension service_namespace",
        "policy_type predictive_scaling_policy_configuration "
        "step_scaling_policy_configuration target_tracking_scaling_policy_configuration",
    ),
    "aws_appautoscaling_policy/target_tracking_scaling_policy_configuration": (
        "target_value",
        "customized_metric_specification disable_scale_in predefined_metric_specification scale_in_cooldown "
        "scale_out_cooldown",
    ),
    "aws_appautoscaling_policy/target_tracking_scaling_policy_configuration/predefined_metric_specification": (
        "predefined_metric_type",
        "resource_label",
    ),
    "aws_appautoscaling_scheduled_action": (
        "name resource_id scalable_dimension scalable_target_action schedule service_namespace",
        "end_time start_time timezone",
    ),
    "aws_appautoscaling_scheduled_action/scalable_target_action": ("", "max_capacity min_capacity"),
    "aws_cloudwatch_metric_alarm": (
        "alarm_name comparison_operator evaluation_periods metric_name namespace period statistic threshold",
        "actions_enabled alarm_actions alarm_description datapoints_to_alarm dimensions "
        "evaluate_low_sample_count_percentiles "
        "extended_statistic insufficient_data_actions metric_query ok_actions tags threshold_metric_id "
        "treat_missing_data unit",
    ),
}
"""Required and optional arguments of each resource and of each block in it: the schema of hashicorp/aws 6.25.0, as
generated into its CDK bindings. Its documentation also requires `primary_container` without `container`, `image`
without a package, `model_name` without inference components (commit 00c59d9fbb50), and an alarm's metric and threshold
without a query."""
ALSO = {"region", "depends_on", "lifecycle", "count", "for_each", "provider"}
"""Every resource has these: `region` since 6.0, the others are Terraform's own."""
MAPS = {"tags", "environment", "dimensions", "lifecycle"}
VALUES: dict[str, set[str]] = {
    "s3_data_type": {"S3Object", "S3Prefix"},
    "compression_type": {"None", "Gzip"},
    "routing_strategy": {"LEAST_OUTSTANDING_REQUESTS", "RANDOM"},
    "policy_type": {"StepScaling", "TargetTrackingScaling", "PredictiveScaling"},
    "comparison_operator": {
        "GreaterThanOrEqualToThreshold",
        "GreaterThanThreshold",
        "LessThanThreshold",
        "LessThanOrEqualToThreshold",
    },
    "statistic": {"SampleCount", "Average", "Sum", "Minimum", "Maximum"},
    "treat_missing_data": {"missing", "ignore", "breaching", "notBreaching"},
}
"""By the provider's documentation; those of AWS's own parameters are checked where the requests are."""


def blocks(deployment: Deployment) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each resource, and each block in one, by its path in SCHEMA."""
    for kind, resources in json.loads(templates.terraform(deployment))["resource"].items():
        for body in resources.values():
            yield from within(kind, body)


def within(path: str, body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, body
    for name, value in body.items():
        for block in value if isinstance(value, list) else [value]:
            if isinstance(block, dict) and name not in MAPS:
                yield from within(f"{path}/{name}", block)


def complaints(path: str, body: dict[str, Any]) -> list[str]:
    required, optional = (set(names.split()) for names in SCHEMA[path])
    also = ALSO if "/" not in path else set()
    unknown = sorted(body.keys() - required - optional - also)
    values = [name for name in sorted(VALUES.keys() & body.keys()) if body[name] not in VALUES[name]]
    return [f"{path}: {name}" for name in [*sorted(required - body.keys()), *unknown, *values]]


@pytest.mark.parametrize("name", ["lmi", "lmi-draft-scaled"])
def test_cfn_lint_has_no_complaint(name: str) -> None:
    assert [str(each) for each in lint(templates.cloudformation(CASES[name]), regions=["us-east-1"])] == []


def test_cfn_lint_would_complain() -> None:
    template: dict[str, Any] = json.loads(templates.cloudformation(CASES["lmi"]))
    template["Resources"]["Configuration"]["Properties"]["ProductionVariants"][0]["InstanceTyp"] = "ml.g6.12xlarge"
    assert lint(json.dumps(template), regions=["us-east-1"])


@pytest.mark.parametrize("name", CASES)
def test_terraform_keeps_to_the_schema_of_the_provider(name: str) -> None:
    assert [each for path, body in blocks(CASES[name]) for each in complaints(path, body)] == []


def test_the_schema_has_what_is_written_and_no_more() -> None:
    assert {path for case in CASES.values() for path, _ in blocks(case)} == set(SCHEMA)


def test_a_missing_unknown_or_wrong_argument_would_be_seen() -> None:
    for path, body in (each for case in CASES.values() for each in blocks(case)):
        for name in SCHEMA[path][0].split():
            assert complaints(path, {key: value for key, value in body.items() if key != name}) == [f"{path}: {name}"]
        for name in VALUES.keys() & body.keys():
            assert complaints(path, body | {name: "another"}) == [f"{path}: {name}"]
        assert complaints(path, body | {"another": 1}) == [f"{path}: another"]


@pytest.mark.parametrize("name", CASES)
def test_terraform_deletes_a_configuration_only_after_the_endpoint_left_it(name: str) -> None:
    """Each change makes another model and configuration; AWS lets no configuration be deleted that an endpoint is
    on."""
    resources = json.loads(templates.terraform(CASES[name]))["resource"]
    for kind, own in (("aws_sagemaker_model", "model"), ("aws_sagemaker_endpoint_configuration", "configuration")):
        assert resources[kind][own]["lifecycle"] == {"create_before_destroy": True}


def test_terraform_asks_for_a_provider_that_knows_the_host() -> None:
    """It takes no `inference_ami_version` that AWS's API did not have when it was built: ours is there since March
    2026."""
    provider = json.loads(templates.terraform(CASES["lmi"]))["terraform"]["required_providers"]["aws"]
    assert provider == {"source": "hashicorp/aws", "version": ">= 6.46"}
