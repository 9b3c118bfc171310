"""A job of AWS beside local ones: where it runs, what it costs, the console, what lies in S3 and what to do next."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from backend.domain.jobs.jobs import JobState, ManagedSpec
from backend.domain.managed import optimization_job_status
from backend.service import Workspace
from backend.service.models import models
from tests import studio
from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.pointed import aws
from tests.optimization_jobs import JOB, REQUEST, Studio
from tests.studio import W8A8

__all__ = ["aws"]
ARN = "arn:aws:sagemaker:us-east-1:123456789012:optimization-job/whetstone-j-0123456789-1"
RESULT = {
    "output": "s3://made/here/n/",
    "image": "djl-inference:0.36.0",
    "optimization_job": "n",
    "arn": ARN,
    "seconds": 1200.0,
    "usd": 2.0,
}


@pytest.fixture
def running(studio_home: Workspace, aws: Account) -> Iterator[Studio]:
    created = Studio(studio_home, aws)
    created.submit()
    yield created
    created.leave()


def test_a_running_job_says_where_it_is_and_what_it_has_cost(running: Studio, aws: Account) -> None:
    running.until_status("is being set up")
    aws.clock.advance(120)
    running.until_status("runs")
    running.until(lambda: "arn:aws:sagemaker" in (running.row.handle or ""), "its ARN")
    card = studio.says(studio.open_page("jobs"))
    assert "At SageMaker, us-east-1, about " in card and "USD so far." in card
    at = studio.open_page("job", id=JOB)
    text = studio.says(at)
    assert "Runs at SageMaker" in text and "Made for ml.g6.12xlarge" in text and "At AWS running" in text
    assert f":optimization-job/{running.name}" in text and "at 6.00 USD per hour" in text and "Resources" not in text
    links = [link.proto.url for link in at.get("link_button")]
    assert links == ["https://us-east-1.console.aws.amazon.com/sagemaker/home?region=us-east-1"]


def test_what_stays_in_s3_says_so_and_can_be_imported(studio_home: Workspace) -> None:
    job = _ended(studio_home, RESULT)
    at = studio.open_page("job", id=job)
    text = studio.says(at)
    assert (
        "s3://made/here/n/" in text
        and "djl-inference:0.36.0" in text
        and "The result is only in S3" in text
        and "Cost 2.00 USD" in text
    )
    assert "Import it as a model" in studio.links(at)
    assert [link.proto.url for link in at.get("link_button")][1] == optimization_job_status.console_url(
        ARN, "s3://made/here/n/"
    )
    listed = studio.open_page("jobs")
    assert (
        "· SageMaker ·" in text
        and "at AWS, about 2.00 USD" in studio.says(listed)
        and "· SageMaker ·" in studio.says(listed)
    )
    listed.button_group(key="jobs_kind").set_value(["managed"]).run()
    assert "1 to 1 of 1" in studio.says(listed)


def test_what_became_an_artifact_is_evaluated_and_deployed_next(studio_home: Workspace) -> None:
    local = studio.optimize_job(studio_home, JobState.SUCCEEDED)
    artifact = studio.artifact(studio_home, local, models.resolve(studio_home, "starter"))
    at = studio.open_page(
        "job", id=_ended(studio_home, {**RESULT, "artifact": artifact, "bytes_before": 20, "bytes_after": 10})
    )
    text = studio.says(at)
    assert at.button(key="job_next-step").label == "Evaluate against the original" and "-50% from" in text
    assert f"whetstone deploy {artifact} --to sagemaker --instance ml.g6.12xlarge" in text and "--bucket made" in text


@pytest.mark.parametrize(
    ("partition", "region", "host"),
    [("aws-cn", "cn-north-1", "console.amazonaws.cn"), ("aws-us-gov", "us-gov-west-1", "console.amazonaws-us-gov.com")],
)
def test_the_console_is_that_of_the_partition(partition: str, region: str, host: str) -> None:
    arn = ARN.replace("arn:aws:", f"arn:{partition}:").replace("us-east-1", region)
    assert optimization_job_status.console_url(arn) == f"https://{region}.{host}/sagemaker/home?region={region}"
    assert (
        optimization_job_status.console_url(arn, "s3://b/p q/")
        == f"https://{region}.{host}/s3/buckets/b?region={region}&prefix=p+q%2F"
    )
    assert optimization_job_status.arn_region("optimization job n of SageMaker") is None


def _ended(home: Workspace, result: dict[str, object]) -> str:
    spec = ManagedSpec(
        model="m",
        recipe=W8A8,
        target="sagemaker:ml.g6.12xlarge",
        request=REQUEST,
        price_per_hour=6.0,
        parent=models.resolve(home, "starter"),
    )
    return studio.put(home, spec, "Optimize m on SageMaker", JobState.SUCCEEDED, result=json.dumps(result)).id
