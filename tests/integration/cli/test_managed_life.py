"""All of the managed path by the command line, from a recipe to nothing left: jobs that are stopped, fail and succeed,
then an endpoint that is deployed, proven, evaluated, updated and deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.service.jobs import jobs, supervisors
from tests import pauses
from tests.buckets import keys
from tests.fakes.running import running
from tests.fakes.sagemaker.pointed import bucket_client, elsewhere, point
from tests.helpers.deployable_artifacts import ROLE, artifact
from tests.homes import eventually, open_home, until_ended
from tests.integration.cli.calling import whetstone
from tests.integration.cli.managed_case import AWS, CASE

pytestmark = [pytest.mark.campaign, pytest.mark.process]
SERVED = ("--instance", "ml.g6.12xlarge")


def test_the_whole_life_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        elsewhere() as account,
        running("s3.py") as s3,
        running("exact_server.py", "--ttft-ms", 5, "--rate", 400) as url,
    ):
        bucket = bucket_client(s3, "weights", monkeypatch, tmp_path)
        point(monkeypatch, tmp_path, account.url)
        monkeypatch.setenv("WHETSTONE_AWS_ROLE", ROLE)
        opened = open_home(tmp_path / "home")
        home = opened.settings.home

        def call(*arguments: object) -> Any:
            done = whetstone(home, *arguments, "--json")
            assert done.returncode == 0, done
            return json.loads(done.stdout)

        stopped, failed, result = (call(*CASE, "--recipe", "awq", *AWS)["id"] for _ in range(3))
        supervisors.start(opened)
        try:
            eventually("three jobs at AWS", lambda: len(account.requests_for("CreateOptimizationJob")) == 3, 60)
            assert whetstone(home, "jobs", "cancel", stopped).returncode == 0
            account.pull(
                "end", {"name": f"whetstone-{failed}-1", "ends": "FAILED", "reason": "The weights are not there."}
            )
            account.pull("end", {"name": f"whetstone-{result}-1", "ends": "COMPLETED"})
            account.pull("clock", {"speed": 600})
            states = {job: until_ended(opened, job).state for job in (stopped, failed, result)}
            assert states == {stopped: "cancelled", failed: "failed", result: "succeeded"}
            assert "The weights are not there (" in str(jobs.show(opened, failed).error)
            pauses.skip(monkeypatch, lambda seconds: account.pull("clock", {"advance": seconds}))
            first, second = artifact(opened), artifact(opened, job="j-2")
            deployed = call(
                "deploy", first, "--to", "sagemaker", *SERVED, "--bucket", "weights", "--name", "chat", "--idle", 30
            )
            assert deployed["state"] == "InService" and all(proof["proven"] for proof in deployed["proofs"])
            account.pull("container", {"url": url, "split": 50})
            requests = ("--concurrency", 1, "--requests", 4, "--repeats", 1, "--no-quality")
            (variant,) = call("evaluate", "sagemaker:chat@us-east-1", *requests, "--wait")["variants"]
            assert [level["invocations"] for level in variant["levels"]] == [4]
            account.pull("container", {})
            assert call("endpoints", "update", "chat", second)["artifact"] == second
            call("endpoints", "delete", "chat")
        finally:
            jobs.cancel_all_and_stop(opened)
        assert call("endpoints", "list") == [] and keys(bucket, "weights") == []
        for kind, name in (
            ("Model", "ModelName"),
            ("EndpointConfig", "EndpointConfigName"),
            ("Endpoint", "EndpointName"),
        ):
            created, deleted = (
                {each[name] for each in account.requests_for(f"{act}{kind}")} for act in ("Create", "Delete")
            )
            assert created == deleted != set(), kind
