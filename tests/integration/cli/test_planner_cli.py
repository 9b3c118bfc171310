"""The planner's verbs as a user meets them: the documented keys, one sentence for what is wrong, no job on a planning
target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.cli.calling import one_sentence, whetstone

KEYS = {
    "weights_bytes",
    "weights_bytes_original",
    "kv_bytes_per_token",
    "min_tensor_parallel",
    "max_tokens_in_cache",
    "ttft_ms",
    "tpot_ms",
    "output_tokens_per_s",
    "price_per_million_output",
    "job_seconds",
    "unknown",
}


def test_the_command_line_answers_with_the_documented_keys(tmp_path: Path) -> None:
    requests = ("recipe", "estimate", "awq", "--model", "meta-textgeneration-llama-3-70b", "--json")
    done = whetstone(tmp_path, *requests, "--target", "ml.g5.12xlarge")
    document = json.loads(done.stdout)
    assert set(document) >= KEYS and document["kv_bytes_per_token"] == 327680 and document["min_tensor_parallel"] == 2
    assert document["weights_bytes"] / 1e9 == pytest.approx(39.8, rel=0.02)
    assert all(
        len(document[name]) == 2 for name in ("ttft_ms", "tpot_ms", "output_tokens_per_s", "price_per_million_output")
    )
    chosen = json.loads(whetstone(tmp_path, *requests, "--target", "auto").stdout)
    assert set(chosen) >= KEYS | {"target", "why", "losers"} and len(chosen["losers"]) == 44


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("estimate", "awq", "--target", "ml.g5.13xlarge"), "ml.g5.12xlarge"),
        (("check", "awq", "--model", "llama-3-70b"), "nearest published ones"),
        (("estimate", "awq", "--target", "auto", "--goal", "fame"), "--goal is wrong"),
        (("estimate", "awq", "--target", "auto", "--max-tpot-ms", "-1"), "--max-tpot-ms is wrong"),
    ],
)
def test_a_wrong_request_is_one_sentence(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert message in one_sentence(whetstone(tmp_path, "recipe", *arguments))


def test_a_job_for_another_target_is_shown_with_what_runs_here_and_what_is_planned(tmp_path: Path) -> None:
    requests = (
        "optimize",
        "meta-textgeneration-llama-3-70b",
        "--recipe",
        "awq",
        "--target",
        "auto",
        "--goal",
        "latency",
        "--dry-run",
    )
    document = json.loads(whetstone(tmp_path, *requests, "--json").stdout)
    deployment = document["deployment"]
    assert document["spec"] is None and document["plan"]["tensor_parallel"] == deployment["tensor_parallel"] > 1
    assert (
        deployment["goal"]["wanted"] == "latency"
        and deployment["losers"]
        and deployment["job"]["target"].startswith("ml.")
    )
    text = whetstone(tmp_path, *requests).stdout
    assert f"To be served on {deployment['target']}" in text and "reason" in text and "models import" in text
    here = whetstone(tmp_path, "optimize", "starter", "--recipe", "w8a8", "--target", "ml.g5.12xlarge", "--dry-run")
    assert (
        here.returncode == 0
        and "The job runs on this machine" in here.stdout
        and "nothing is started there" in here.stdout
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("starter", "--target", "sagemaker:ml.g5.12xlarge", "--dry-run"), "The SageMaker toolkit refuses this"),
        (("starter", "--target", "auto", "--max-tpot-ms", "0.001"), "No instance fits"),
        (("starter", "--target", "auto", "--goal", "fame"), "--goal is wrong"),
        (("meta-textgeneration-llama-3-70b", "--target", "auto"), "whetstone models import"),
    ],
)
def test_what_no_job_can_be_for_is_refused_before_anything_starts(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    assert message in one_sentence(whetstone(tmp_path, "optimize", *arguments, "--recipe", "w8a8"))
