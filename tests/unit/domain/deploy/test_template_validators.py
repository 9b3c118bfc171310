"""The deployment as text by others' rules: CloudFormation by cfn-lint, Terraform by the arguments of its provider."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cfnlint.api import lint

from backend.domain.deploy import templates
from tests.unit.domain.deploy.test_deploy_requests import CASES

ARGUMENTS: dict[str, set[str]] = {
    "aws_sagemaker_model": {
        "name", "primary_container", "execution_role_arn", "inference_execution_config", "container", "enable_network_isolation",
        "vpc_config", "tags",
    },
    "aws_sagemaker_endpoint_configuration": {
        "production_variants", "execution_role_arn", "kms_key_arn", "name", "name_prefix", "tags", "data_capture_config",
        "async_inference_config", "shadow_production_variants",
    },
    "aws_sagemaker_endpoint": {"endpoint_config_name", "deployment_config", "name", "tags"},
    "aws_appautoscaling_target": {
        "max_capacity", "min_capacity", "resource_id", "role_arn", "scalable_dimension", "service_namespace", "suspended_state",
        "tags",
    },
    "aws_appautoscaling_policy": {
        "name", "policy_type", "resource_id", "scalable_dimension", "service_namespace", "step_scaling_policy_configuration",
        "target_tracking_scaling_policy_configuration", "predictive_scaling_policy_configuration",
    },
    "aws_appautoscaling_scheduled_action": {
        "name", "resource_id", "scalable_dimension", "scalable_target_action", "service_namespace", "end_time", "schedule",
        "start_time", "timezone",
    },
    "aws_cloudwatch_metric_alarm": {
        "alarm_name", "comparison_operator", "evaluation_periods", "metric_name", "namespace", "period", "statistic", "threshold",
        "threshold_metric_id", "actions_enabled", "alarm_actions", "alarm_description", "datapoints_to_alarm", "dimensions",
        "insufficient_data_actions", "ok_actions", "unit", "extended_statistic", "treat_missing_data",
        "evaluate_low_sample_count_percentiles", "metric_query", "tags",
    },
}  # fmt: skip
"""Those that the documentation of hashicorp/aws 6 lists; `lifecycle` and such are Terraform's own."""
META = {"depends_on", "lifecycle", "count", "for_each", "provider"}


@pytest.mark.parametrize("name", ["lmi", "lmi-draft-scaled"])
def test_cfn_lint_has_no_complaint(name: str) -> None:
    assert [str(each) for each in lint(templates.cloudformation(CASES[name]), regions=["us-east-1"])] == []


def test_cfn_lint_would_complain() -> None:
    template: dict[str, Any] = json.loads(templates.cloudformation(CASES["lmi"]))
    template["Resources"]["Configuration"]["Properties"]["ProductionVariants"][0]["InstanceTyp"] = "ml.g6.12xlarge"
    assert lint(json.dumps(template), regions=["us-east-1"])


@pytest.mark.parametrize("name", CASES)
def test_terraform_has_only_arguments_of_the_provider(name: str) -> None:
    found = json.loads(templates.terraform(CASES[name]))["resource"]
    for kind, resources in found.items():
        for body in resources.values():
            assert body.keys() - META <= ARGUMENTS[kind], kind
