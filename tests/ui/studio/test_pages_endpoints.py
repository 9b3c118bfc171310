"""Endpoints: what is served here and on AWS, what it costs, and its deletion after a second click."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from backend.aws.sagemaker import Service
from backend.domain.deploy import sagemaker_requests
from backend.domain.deploy.deployment import Idle
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.jobs import Event, JobState, ServeSpec
from backend.launchers.endpoints import Endpoints
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.models import models
from backend.service.serving import endpoints, playground
from tests import studio
from tests.buckets import keys
from tests.fakes.sagemaker.account import Account, Fault
from tests.fakes.sagemaker.pointed import aws, bucket, s3
from tests.helpers.deployable_artifacts import REQUEST, artifact
from tests.helpers.deployment_cases import PLAIN
from tests.pricing import no_credentials

__all__ = ["aws", "bucket", "s3"]


def test_without_credentials_it_says_what_to_set(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_credentials(monkeypatch, tmp_path)
    text = studio.says(studio.open_page("endpoints"))
    assert "No server runs on this machine." in text and "AWS_ACCESS_KEY_ID" in text


@pytest.mark.parametrize("chat", [True, False])
def test_a_server_of_this_machine_is_named_asked_and_stopped(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chat: bool
) -> None:
    """The sample asks in chat where the model has a chat template; the address is no link."""
    no_credentials(monkeypatch, tmp_path)
    monkeypatch.setattr(playground, "has_chat_template", lambda folder: chat)
    artifact_id = studio.artifact(studio_home, studio.optimize_job(studio_home), models.resolve(studio_home, "starter"))
    variant = Variant(name="w8a8", source=artifact_id, kind="artifact", model_path="/m")
    serving = studio.serving((artifact_id, "http://127.0.0.1:1"))
    counters = {"generation_tokens": 1234.0, "prompt_tokens": 56.0}
    reading = Event(kind="progress", phase="serve", data={"served": {artifact_id: counters}})
    job = studio.put(
        studio_home, ServeSpec(variants=(variant,)), "Serve w8a8", JobState.RUNNING, events=[serving, reading]
    )
    at = studio.open_page("endpoints")
    text = studio.says(at)
    assert "(of starter) answers at `http://127.0.0.1:1/v1`" in text and studio.links(at)[:2] == ["Chat", "Job and log"]
    assert ("/v1/chat/completions" in text) is chat and '"temperature": 0' in text
    assert "Cancel" not in text and "Stop these servers?" in text
    assert "`whetstone gateway` gives all of them one address" in text
    assert {metric.label: metric.value for metric in at.metric} == {
        "Output tokens/s": "123.4",
        "Output tokens": "1,234",
        "Prompt tokens": "56",
    }
    at.button(key=f"endpoints_cancel-{job.id}").click().run()
    studio.check(at)
    assert jobs.show(studio_home, job.id).cancel_requested


def test_nothing_there_says_what_to_do(studio_home: Workspace, aws: Account) -> None:
    text = studio.says(studio.open_page("endpoints"))
    assert "there is no cost" in text and "whetstone deploy ARTIFACT" in text


def test_an_endpoint_shows_its_cost_and_is_deleted_by_a_second_click(
    studio_home: Workspace, aws: Account, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = PLAIN.model_copy(update={"owner": studio_home.actor.name, "idle": Idle(minutes=30)})
    for call in (*sagemaker_requests.create(watched), *sagemaker_requests.around(watched)):
        Service(call.service).call(call.operation, **call.parameters)
    at = studio.open_page("endpoints")
    assert "Idle: no requests" not in studio.says(at)
    assert "No request yet." in studio.says(at)
    aws.clock.advance(3600)
    Endpoints().ask("whetstone-chat", {"model": "model", "prompt": "a", "max_tokens": 4})
    aws.clock.advance(3600)
    at.button(key="endpoints_ask").click().run()
    text = studio.says(at)
    assert "0 requests in the last hour; 1 request since it was created." in text
    assert "Idle: no requests" in text and "There is no artifact to serve instead" in text
    assert (
        "chat" in text and "InService" in text and "USD per hour on demand, since" in text and "invoke_endpoint" in text
    )
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: aws.clock.advance(seconds) if seconds >= 5 else sleep(seconds))
    at.button(key="endpoints_delete-chat").click().run()
    studio.check(at)
    assert aws.tables["models"] == {} and aws.tables["configurations"] == {} and "there is no cost" in studio.says(at)


def test_an_endpoint_is_updated_in_place_after_its_cost_was_shown(
    studio_home: Workspace, aws: Account, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = artifact(studio_home), artifact(studio_home, job="j-2")
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: aws.clock.advance(seconds) if seconds >= 5 else sleep(seconds))
    endpoints.deploy(
        studio_home, endpoints.plan(studio_home, first, REQUEST.model_copy(update={"name": "chat"})), lambda line: None
    )
    at = studio.open_page("endpoints")
    at.selectbox(key="endpoints_artifact-chat").select(second).run()
    at.selectbox(key="endpoints_instance-chat").select("ml.g6.24xlarge").run()
    text = studio.says(at)
    assert "until then it costs 14.10 USD per hour on demand, then 8.34." in text.replace("\\", "")
    assert f"whetstone endpoints update chat {second} --region us-east-1 --instance ml.g6.24xlarge" in text
    assert aws.requests_for("UpdateEndpoint") == [], "nothing happens before it is confirmed"
    at.button(key="endpoints_update-chat").click().run()
    studio.check(at)
    text = studio.says(at).replace("\\", "")
    assert f"{second} (int4) on 1 x ml.g6.24xlarge" in text and "The engine" in text
    assert keys(bucket, "weights") == [f"whetstone-endpoints/chat/{second}/model/config.json"]
    at.text_input(key="endpoints_alarms-chat").input("errors").run()
    aws.tables["update plan"] = {"ends": "RolledBack", "reason": "errors went off."}
    at.selectbox(key="endpoints_artifact-chat").select(first).run()
    at.button(key="endpoints_update-chat").click().run()
    assert "AWS went back to what was served before: errors went off." in studio.says(at).replace("\\", "")
    assert aws.requests_for("UpdateEndpoint")[-1]["DeploymentConfig"]["AutoRollbackConfiguration"] == {
        "Alarms": [{"AlarmName": "errors"}]
    }
    aws.tables["container"] = {"answer": " "}
    at.button(key="endpoints_prove-chat").click().run()
    studio.check(at)
    assert "The answer to a probe holds no text" in studio.says(at)


def test_what_aws_refuses_is_one_sentence(studio_home: Workspace, aws: Account) -> None:
    aws.faults.append(Fault("AccessDeniedException", "ListEndpoints"))
    at = studio.open_page("endpoints")
    assert [error.value.replace("\\", "") for error in at.error] == [
        "AWS refuses: the credentials in use need sagemaker:ListEndpoints."
    ]
