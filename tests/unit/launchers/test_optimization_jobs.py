"""Optimization jobs of SageMaker under a real supervisor, against the account on loopback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import DiskFull
from backend.domain.jobs.jobs import Handle, JobState
from backend.domain.managed.optimization_job_status import PollingPace
from backend.launchers import sagemaker
from backend.launchers.sagemaker import SageMakerLauncher
from backend.supervisor.supervisor import Supervisor
from tests.fakes.sagemaker.account import Account, Fault
from tests.fakes.sagemaker.optimization import end, running
from tests.fakes.sagemaker.pointed import aws
from tests.homes import open_home
from tests.optimization_jobs import BETWEEN_S, JOB, REQUEST, Studio

__all__ = ["aws"]

pytestmark = pytest.mark.process

NAME = "whetstone-j-0123456789-1"


def dies_before_the_record(studio: Studio) -> None:
    """The supervisor, after it has started the job."""
    with pytest.MonkeyPatch.context() as until_then:
        until_then.setattr(Supervisor, "_record_start", lambda *_: None)
        assert studio.supervisor._start_next([])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between botocore's own tries."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)


@pytest.fixture
def studio(aws: Account, tmp_path: Path) -> Iterator[Studio]:
    created = Studio(open_home(tmp_path / "home"), aws)
    created.submit()
    yield created
    for launcher in created.launchers:
        for follower in launcher._followers.values():
            follower.stop()


def test_a_job_completes_and_its_output_and_image_are_recorded(studio: Studio, aws: Account) -> None:
    studio.until_status("is being set up")
    aws.clock.advance(120)
    studio.until_status("runs")
    aws.clock.advance(600)
    aws.clock.advance(600)
    studio.until_state(JobState.SUCCEEDED)
    assert studio.creates() == 1
    assert aws.requests_for("CreateOptimizationJob") == [
        {"OptimizationJobName": NAME, **REQUEST, "OutputConfig": {"S3OutputLocation": f"s3://b/out/{NAME}/"}}
    ]
    result = studio.result
    assert (result["output"], result["seconds"], result["usd"]) == (f"s3://b/out/{NAME}/", 1200.0, 2.0)
    assert "djl-inference" in result["image"] and result["arn"].endswith(NAME)
    assert (
        f"has completed after 20 min, about 2.00 USD at the price of the instance that it is for. The result is in "
        f"s3://b/out/{NAME}/" in studio.messages
    )
    assert Handle.model_validate_json(studio.row.handle or "").place == result["arn"]


def test_the_reason_of_a_failure_comes_first(studio: Studio, aws: Account) -> None:
    studio.until_status("is being set up")
    end(aws, {"name": NAME, "ends": "FAILED", "reason": "CapacityError: no ml.g6.12xlarge is free.\n"})
    studio.until_state(JobState.FAILED)
    assert (studio.row.error or "").startswith(f"CapacityError: no ml.g6.12xlarge is free (optimization job {NAME}")
    assert studio.creates() == 1


def test_we_stop_it_and_wait_for_its_end(studio: Studio, aws: Account) -> None:
    aws.faults.append(Fault("ThrottlingException", "StopOptimizationJob", times=4))
    studio.until_status("is being set up")
    aws.clock.advance(180)
    studio.cancel()
    studio.until_status("stops")
    assert studio.row.state == JobState.CANCELLING and running(aws) == [NAME]
    aws.clock.advance(60)
    studio.until_state(JobState.CANCELLED)
    assert running(aws) == [] and "was stopped after 2 min, about 0.20 USD" in (studio.row.error or "")


def test_somebody_else_stops_it(studio: Studio, aws: Account) -> None:
    studio.until_status("is being set up")
    end(aws, {"name": NAME, "ends": "STOPPED"})
    studio.until_state(JobState.FAILED)
    assert "Somebody stopped the optimization job" in (studio.row.error or "") and "resume the job" in (
        studio.row.error or ""
    )


def test_another_home_has_it_stopped_before_it_gives_it_up(studio: Studio, aws: Account, tmp_path: Path) -> None:
    studio.until_status("is being set up")
    handle = Handle.model_validate_json(studio.row.handle or "")
    aws.faults.append(Fault("ThrottlingException", "StopOptimizationJob", times=4))
    other = SageMakerLauncher(
        open_home(tmp_path / "other").settings, pace=lambda: PollingPace(BETWEEN_S, BETWEEN_S, BETWEEN_S)
    )
    assert not other.ended_elsewhere(studio.row.spec, handle)
    studio.until(lambda: other.ended_elsewhere(studio.row.spec, handle), "the stop")
    assert aws.requests_for("StopOptimizationJob")[-1] == {"OptimizationJobName": NAME}
    never = handle.model_copy(update={"data": {**handle.data, "name": "whetstone-j-9999999999-1"}})
    studio.until(lambda: other.ended_elsewhere(studio.row.spec, never), "one that AWS does not know")


def test_a_job_that_is_cancelled_before_it_is_created_is_never_created(studio: Studio, aws: Account) -> None:
    studio.supervisor._start_next([])
    studio.cancel()
    follower = next(iter(studio.launchers[0]._followers.values()))
    follower._asked = True
    studio.until_state(JobState.CANCELLED)
    assert studio.creates() == 0


@pytest.mark.parametrize("fault", ["ThrottlingException", 503, "cut", "lost", "drop"])
def test_what_is_busy_or_broken_costs_no_job(studio: Studio, aws: Account, fault: str | int) -> None:
    aws.faults += [
        Fault(fault, "CreateOptimizationJob", times=4),
        Fault(fault, "DescribeOptimizationJob", times=12, after=1),
    ]
    studio.until_status("is being set up")
    studio.until(lambda: all(each.operation != "DescribeOptimizationJob" for each in aws.faults), "faults")
    aws.clock.advance(3600)
    studio.until_state(JobState.SUCCEEDED)
    assert len(aws.tables["optimization"]) == 1 and studio.row.attempt == 1


def test_credentials_that_expire_while_it_runs_are_waited_for(studio: Studio, aws: Account) -> None:
    studio.until_status("is being set up")
    aws.faults.append(Fault("ExpiredTokenException", times=10_000))
    studio.until(lambda: "Waits for AWS: The AWS credentials in use have expired" in studio.messages, "expired")
    aws.clock.advance(3600)
    aws.faults.clear()
    studio.until_state(JobState.SUCCEEDED)
    assert studio.creates() == 1


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault("AccessDeniedException"), "need sagemaker:CreateOptimizationJob"),
        (
            Fault("AccessDeniedException", message="u is not authorized to perform: iam:PassRole on r"),
            "need iam:PassRole",
        ),
        (Fault("ValidationException", message="The EULA is not accepted."), "The EULA is not accepted"),
        (Fault("ResourceLimitExceeded", message="The account-level limit is 0."), "limit is 0"),
    ],
    ids=lambda value: getattr(value, "do", value)[:12],
)
def test_what_aws_refuses_is_a_failure_in_its_words(studio: Studio, aws: Account, fault: Fault, words: str) -> None:
    fault.operation = "CreateOptimizationJob"
    aws.faults.append(fault)
    studio.until_state(JobState.FAILED)
    assert words in (studio.row.error or "") and studio.creates() == 1 and running(aws) == []


def test_a_supervisor_that_dies_after_the_submit_finds_its_job_again(studio: Studio, aws: Account) -> None:
    studio.until(studio.creates, "created")
    studio.again()
    aws.clock.advance(3600)
    studio.until_state(JobState.SUCCEEDED)
    assert studio.creates() == 1 and studio.row.attempt == 1


def test_nothing_is_submitted_before_the_handle_stands_in_the_store(studio: Studio, aws: Account) -> None:
    dies_before_the_record(studio)
    assert aws.log == []


def test_what_a_dead_supervisor_has_not_recorded_is_found_by_name_and_stopped(
    studio: Studio, aws: Account, monkeypatch: Any
) -> None:
    """As of a version that submits at once: nobody may pay for what no row names."""
    monkeypatch.setattr(sagemaker, "SWEEP_S", 30.0)
    dies_before_the_record(studio)
    follower = next(iter(studio.launchers[0]._followers.values()))
    follower.poll()
    while not follower._known:
        time.sleep(0.01)
    launcher = SageMakerLauncher(studio.workspace.settings, pace=lambda: PollingPace(BETWEEN_S, BETWEEN_S, BETWEEN_S))
    launcher.sweep(JOB, None)
    assert len(aws.requests_for("StopOptimizationJob")) >= 1
    aws.clock.advance(60)
    assert running(aws) == []


def test_a_job_that_is_not_known_at_once_is_not_submitted_twice(studio: Studio, aws: Account) -> None:
    """Eventual consistency: the first looks find nothing."""
    aws.faults.append(Fault("ResourceNotFound", "DescribeOptimizationJob", times=5))
    studio.until_status("is being set up")
    assert studio.creates() == 1 and len(aws.tables["optimization"]) == 1


def test_a_job_that_somebody_deleted_is_over(studio: Studio, aws: Account, monkeypatch: Any) -> None:
    monkeypatch.setattr(sagemaker, "GONE_S", 0.1)
    studio.until_status("is being set up")
    aws.tables["optimization"].clear()
    studio.until_state(JobState.FAILED)
    assert "somebody deleted" in (studio.row.error or "") and studio.creates() == 1


def test_a_supervisor_that_asks_no_more_creates_nothing(studio: Studio, aws: Account, monkeypatch: Any) -> None:
    monkeypatch.setattr(sagemaker, "POLLED_S", -1.0)
    for _ in range(20):
        studio.supervisor.tick()
        time.sleep(0.02)
    assert studio.creates() == 0


def test_a_sweep_says_what_may_still_run_while_aws_does_not_take_the_stop(
    studio: Studio, aws: Account, monkeypatch: Any
) -> None:
    monkeypatch.setattr(sagemaker, "SWEEP_S", 0.2)
    studio.until_status("is being set up")
    aws.faults.append(Fault("AccessDeniedException", "StopOptimizationJob", times=10_000))
    handle, launcher = Handle.model_validate_json(studio.row.handle or ""), studio.launchers[0]
    launcher.cancel(handle, force=False)
    studio.until(lambda: "StopOptimizationJob" in launcher._followers[NAME].why, "it is refused")
    with pytest.raises(sagemaker.StillRunning, match=r"may still run at AWS .*StopOptimizationJob"):
        launcher.sweep(JOB, handle)
    aws.faults.clear()
    studio.until(
        lambda: len([one for one in aws.log if one.answer == 200 and one.operation == "StopOptimizationJob"]), "stop"
    )
    monkeypatch.setattr(sagemaker, "SWEEP_S", 30.0)
    launcher.sweep(JOB, handle)
    aws.clock.advance(60)
    assert running(aws) == []


def test_a_round_does_not_wait_for_aws(studio: Studio, aws: Account) -> None:
    studio.until_status("is being set up")
    with aws.lock:  # no request is answered
        for _ in range(5):
            studio.supervisor.tick()
        assert running(aws) == [NAME]


def test_a_refusal_after_an_answer_that_was_lost_leaves_no_job_unnoticed(studio: Studio, aws: Account) -> None:
    """The first request has worked; the second meets a limit, and the looks stay behind for a while."""
    aws.faults += [
        Fault("lost", "CreateOptimizationJob"),
        Fault("ResourceLimitExceeded", "CreateOptimizationJob"),
        Fault("ResourceNotFound", "DescribeOptimizationJob", times=6),
    ]
    studio.until_status("is being set up")
    assert studio.creates() == 2 and studio.row.attempt == 1
    aws.clock.advance(3600)
    studio.until_state(JobState.SUCCEEDED)


def test_a_refusal_after_a_request_that_did_not_arrive_is_a_failure(
    studio: Studio, aws: Account, monkeypatch: Any
) -> None:
    monkeypatch.setattr(sagemaker, "SETTLE_S", 0.2)
    aws.faults += [Fault("drop", "CreateOptimizationJob"), Fault("ResourceLimitExceeded", "CreateOptimizationJob")]
    studio.until_state(JobState.FAILED)
    assert "ResourceLimitExceeded" in (studio.row.error or "") and running(aws) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_follower_whose_thread_has_died_is_followed_on(studio: Studio, aws: Account, monkeypatch: Any) -> None:
    studio.until_status("is being set up")
    follower = studio.launchers[0]._followers[NAME]
    before = follower._thread

    def ends(*_: Any) -> bool:
        raise SystemExit

    with monkeypatch.context() as until_then:
        until_then.setattr(follower, "_record_status", ends)
        studio.until(lambda: before is not None and not before.is_alive(), "dead")
    aws.clock.advance(3600)
    studio.until_state(JobState.SUCCEEDED)


def test_a_supervisor_starts_where_what_it_puts_aside_cannot_be_stopped_yet(
    studio: Studio, aws: Account, monkeypatch: Any
) -> None:
    monkeypatch.setattr(sagemaker, "SWEEP_S", 0.1)
    studio.until_status("is being set up")
    (studio.workspace.settings.home / "in-hand").write_text(f"{JOB} 3")
    aws.faults.append(Fault("AccessDeniedException", "StopOptimizationJob", times=10_000))
    studio.again()
    studio.supervisor.tick()
    assert studio.row.state == JobState.RUNNING
    aws.faults.clear()
    studio.until_state(JobState.LOST)
    assert "3 supervisors in a row ended at this job" in (studio.row.error or "") and studio.row.aside
    aws.clock.advance(60)
    assert running(aws) == [] and studio.creates() == 1


def test_a_full_disk_is_not_told_as_aws(studio: Studio, aws: Account, monkeypatch: Any) -> None:
    studio.until_status("is being set up")

    def full(*_: Any) -> None:
        raise DiskFull

    with monkeypatch.context() as until_then:
        until_then.setattr("backend.channel.JobChannel.result", full)
        aws.clock.advance(3600)
        studio.until(lambda: "Waits for room for its record: The disk filled up" in studio.messages, "full")
    studio.until_state(JobState.SUCCEEDED)
