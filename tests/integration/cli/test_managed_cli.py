"""`whetstone optimize --target sagemaker:...` as a user meets it: the exact requests, refusals, and a kill -9 in its
life."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from subprocess import Popen

import pytest

from tests.fakes.sagemaker.pointed import elsewhere, point
from tests.homes import eventually
from tests.integration.cli.calling import one_sentence, whetstone
from tests.integration.cli.managed_case import AWS, CASE, OUTPUT, ROLE, SOURCE


def test_a_dry_run_prints_the_exact_requests_and_starts_nothing(tmp_path: Path) -> None:
    done = whetstone(tmp_path, *CASE, "--recipe", "awq", *AWS, "--aws", "accept-eula=yes", "--dry-run", "--json")
    document = json.loads(done.stdout)
    (request,) = document["requests"]
    assert request == {
        "OptimizationJobName": "whetstone-j-0000000000-1",
        "RoleArn": ROLE,
        "DeploymentInstanceType": "ml.g6.12xlarge",
        "ModelSource": {"S3": {"S3Uri": f"{SOURCE}/", "ModelAccessConfig": {"AcceptEula": True}}},
        "OptimizationConfigs": [{"ModelQuantizationConfig": {"OverrideEnvironment": {"OPTION_QUANTIZE": "awq"}}}],
        "OutputConfig": {"S3OutputLocation": f"{OUTPUT}/whetstone-j-0000000000-1/"},
        "StoppingCondition": {"MaxRuntimeInSeconds": 36000},
    }
    assert document["price_per_hour"] > 0 and document["notes"]
    assert json.loads(whetstone(tmp_path, "jobs", "list", "--json").stdout) == []
    text = whetstone(tmp_path, *CASE, "--recipe", "awq", *AWS, "--dry-run").stdout
    policy = json.loads(whetstone(tmp_path, *CASE, "--recipe", "awq", *AWS, "--as", "policy").stdout)
    assert [each["Sid"] for each in policy["Statement"]] == ["Job", "Role"], (
        "neither an upload nor a result that comes back"
    )
    assert "1 call of AWS." in text and "SageMaker chooses the instance that the job runs on" in text


def test_local_weights_are_uploaded_first_and_the_result_becomes_an_artifact(tmp_path: Path) -> None:
    sent = ("--aws", f"role={ROLE}", "--aws", f"output={OUTPUT}", "--aws", "upload=s3://models/ours")
    case = ("optimize", "starter", "--target", "sagemaker:ml.g6.12xlarge", "--recipe", "awq", "--dry-run", "--json")
    document = json.loads(whetstone(tmp_path, *case, *sent).stdout)
    (request,) = document["requests"]
    assert request["ModelSource"] == {"S3": {"S3Uri": "s3://models/ours/SHA256-OF-THE-FILES/"}}
    assert (
        any("are uploaded first" in note for note in document["notes"])
        and "becomes an artifact" in document["notes"][-1]
    )
    left = json.loads(whetstone(tmp_path, *case, *sent, "--aws", "fetch=no").stdout)["notes"][-1]
    assert left == "The result stays in S3, as requested."
    assert "upload=s3://BUCKET/PREFIX" in one_sentence(whetstone(tmp_path, *case, *sent[:4]))


def test_a_draft_alone_makes_no_job_and_needs_no_setting(tmp_path: Path) -> None:
    done = whetstone(tmp_path, *CASE, "--recipe", "draft", "--dry-run", "--json")
    document = json.loads(done.stdout)
    assert document["requests"] == [] and "needs no optimization job" in document["notes"][0]
    assert "There is nothing to start" in one_sentence(whetstone(tmp_path, *CASE, "--recipe", "draft"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--recipe", "awq", "--dry-run"), "give --aws role=... or set WHETSTONE_AWS_ROLE"),
        (("--recipe", "awq", *AWS, "--aws", "role=me"), "--aws role is wrong: it must be a role such as"),
        (("--recipe", "smoothquant", *AWS), "smoothquant needs `compile` beside it: add it. Nearest valid recipe: "),
        (("--recipe", "awq", *AWS, "--then-evaluate"), "--then-evaluate works only for jobs that run here"),
        (("--recipe", "awq", *AWS, "--target", "local"), "--aws goes with a target such as sagemaker:ml.g6.12xlarge"),
    ],
)
def test_what_lacks_or_is_wrong_is_one_sentence_before_any_work(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    assert message in one_sentence(whetstone(tmp_path, *CASE, *arguments))


def test_the_environment_says_what_is_always_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHETSTONE_AWS_ROLE", ROLE)
    monkeypatch.setenv("WHETSTONE_AWS_OUTPUT", OUTPUT)
    monkeypatch.setenv("WHETSTONE_AWS_KMS_KEY", "alias/k")
    done = whetstone(tmp_path, *CASE, "--recipe", "awq", "--aws", "source=model:m-1", "--dry-run", "--json")
    (request,) = json.loads(done.stdout)["requests"]
    assert request["OutputConfig"]["KmsKeyId"] == "alias/k" and request["ModelSource"] == {
        "SageMakerModel": {"ModelName": "m-1"}
    }


@pytest.mark.process
def test_a_supervisor_killed_after_the_submit_is_followed_by_one_that_finds_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with elsewhere() as account:
        point(monkeypatch, tmp_path, account.url)
        home = tmp_path / "home"
        job = json.loads(whetstone(home, *CASE, "--recipe", "awq", *AWS, "--json").stdout)["id"]
        command = [sys.executable, "-m", "backend.supervisor"]
        with Popen(command, env={**os.environ, "WHETSTONE_HOME": str(home)}) as first:
            eventually("the submit", lambda: bool(account.requests_for("CreateOptimizationJob")), 60)
            first.kill()
        account.pull("clock", {"advance": 7200})
        with Popen([*command, "--until-idle", "0.5"], env={**os.environ, "WHETSTONE_HOME": str(home)}) as second:
            assert second.wait(60) == 0
        parsed = json.loads(whetstone(home, "jobs", "show", job, "--json").stdout)
        assert parsed["state"] == "succeeded" and parsed["attempt"] == 1
        assert (
            parsed["result"]["output"] == f"{OUTPUT}/whetstone-{job}-1/"
            and "djl-inference" in parsed["result"]["image"]
        )
        assert len(account.requests_for("CreateOptimizationJob")) == 1
