"""Weights that lie here on their way to an optimization job, and its result on its way back, with S3 of moto."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient

from backend.aws import objects
from backend.aws.objects import Objects
from backend.domain.jobs.jobs import Handle, JobState
from backend.domain.managed import iam_policy
from backend.domain.model.facts import ModelCard
from backend.launchers import weight_upload
from backend.service import Workspace
from backend.service.jobs import artifacts
from backend.service.models import models, variants
from tests.buckets import keys
from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.pointed import aws, bucket_client, s3
from tests.optimization_jobs import JOB, REQUEST, Studio
from tests.unit.launchers.sagemaker_endpoints import IAM

__all__ = ["aws", "s3"]

pytestmark = pytest.mark.process
NAME = f"whetstone-{JOB}-1"
HERE = {
    **REQUEST,
    "OutputConfig": {"S3OutputLocation": "s3://made/out/"},
    "ModelSource": {"S3": {"S3Uri": "s3://made/up/SHA256-OF-THE-FILES/"}},
}


@pytest.fixture
def bucket(s3: str, aws: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    created = bucket_client(s3, "made", monkeypatch, tmp_path)
    created.put_bucket_versioning(Bucket="made", VersioningConfiguration={"Status": "Enabled"})
    return created


@pytest.fixture
def model(home: Workspace) -> ModelCard:
    return models.resolve(home, "starter")


@pytest.fixture
def studio(home: Workspace, aws: Account) -> Iterator[Studio]:
    created = Studio(home, aws)
    yield created
    created.leave()


OF_A_STOP_OR_A_BREAK = {
    "iam:PassRole",
    "sagemaker:StopOptimizationJob",
    "s3:ListMultipartUploadParts",
    "s3:AbortMultipartUpload",
    "s3:DeleteObject",
}
"""The first is checked by AWS within the creation; what arrived with other bytes is removed."""


def folder_of(tmp_path: Path, content: bytes) -> Path:
    folder = tmp_path / content.hex()
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(content)
    (folder / "modeling.py").write_text("never sent")
    return folder


def nobody(done: int, total: int) -> None:
    """Hears nothing."""


def test_weights_of_the_same_shapes_have_folders_of_their_own_and_no_code_goes(bucket: Any, tmp_path: Path) -> None:
    first, second = (
        weight_upload.upload(folder_of(tmp_path, each), "s3://made/up/", nobody) for each in (b"one", b"two")
    )
    assert first != second
    assert keys(bucket, "made") == sorted(
        f"up/{content}/{name}" for content in (first, second) for name in ("config.json", "model.safetensors")
    )


def test_an_upload_that_was_stopped_goes_on_and_sends_nothing_twice(bucket: Any, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, b"one")

    def stops(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weight_upload.upload(folder, "s3://made/up", stops)
    assert len(keys(bucket, "made")) == 1
    for _ in range(2):
        weight_upload.upload(folder, "s3://made/up", nobody)
    assert len(bucket.list_object_versions(Bucket="made")["Versions"]) == 2


def test_weights_go_up_and_the_result_comes_back_as_a_verified_artifact(
    studio: Studio, aws: Account, bucket: Any, home: Workspace, model: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, plain = set(), BaseClient._make_api_call

    def record_call(client: Any, operation: str, parameters: dict[str, Any]) -> Any:
        if client is not bucket:
            called.add(f"{client.meta.service_model.signing_name}:{operation}")
        return plain(client, operation, parameters)

    monkeypatch.setattr(BaseClient, "_make_api_call", record_call)
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    studio.submit(request=HERE, weights=model.path, parent=model)
    studio.until_status("is being set up")
    (request,) = aws.requests_for("CreateOptimizationJob")
    source = request["ModelSource"]["S3"]["S3Uri"]
    assert (
        source.startswith("s3://made/up/")
        and "SHA256" not in source
        and "Uploading the weights to s3://made/up." in studio.messages
    )
    assert f"{source.removeprefix('s3://made/')}config.json" in keys(bucket, "made")
    for path in Path(model.path).iterdir():
        bucket.upload_file(str(path), "made", f"out/{NAME}/model/{path.name}")
    bucket.put_object(Bucket="made", Key=f"out/{NAME}/serving.properties", Body=b"option.quantize=awq")
    for _ in range(12):
        aws.clock.advance(120)
    studio.until_state(JobState.SUCCEEDED)
    result = studio.result
    artifact = artifacts.show(home, result["artifact"])
    assert (
        artifact.manifest.parent == model
        and artifact.manifest.job == JOB
        and result["bytes_after"] == model.weights_bytes
    )
    assert {file.path.split("/")[0] for file in artifact.manifest.files} == {"model"}
    artifacts.verify(home, artifact.id)
    assert variants.resolve(home, artifact.id).kind == "artifact" and studio.creates() == 1
    allowed = {
        each for one in iam_policy.document(HERE, "us-east-1", fetched=True)["Statement"] for each in one["Action"]
    }
    assert {IAM.get(each, each) for each in called} | OF_A_STOP_OR_A_BREAK == allowed


def test_aws_is_not_asked_again_while_a_result_comes_back(studio: Studio, aws: Account) -> None:
    """The supervisor sweeps and polls in each round until the artifact is in its place, which may be hours."""
    studio.submit()
    studio.until_status("is being set up")
    aws.clock.advance(2000)
    studio.until_state(JobState.SUCCEEDED)
    request, launcher = len(aws.requests_for("DescribeOptimizationJob")), studio.launchers[-1]
    handle = Handle.model_validate_json(studio.row.handle or "")
    for _ in range(3):
        launcher.sweep(JOB, handle)
        assert not launcher.poll(handle).alive
    assert len(aws.requests_for("DescribeOptimizationJob")) == request and studio.messages.count("has completed") == 1


def test_what_is_no_weights_stays_in_s3(studio: Studio, aws: Account, bucket: Any, model: ModelCard) -> None:
    studio.submit(request={**REQUEST, "OutputConfig": HERE["OutputConfig"]}, parent=model)
    studio.until_status("is being set up")
    bucket.put_object(Bucket="made", Key=f"out/{NAME}/engine.neff", Body=b"compiled")
    aws.clock.advance(2000)
    studio.until_state(JobState.SUCCEEDED)
    assert "artifact" not in studio.result and "it stays in S3" in studio.result["left"]


def test_a_cancel_during_the_upload_creates_no_job(
    studio: Studio, bucket: Any, model: ModelCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Objects.put

    def first_cancels(*items: Any) -> None:
        studio.cancel()
        studio.launchers[-1]._followers[NAME].cancel()
        put(*items)

    monkeypatch.setattr(Objects, "put", first_cancels)
    studio.submit(request=HERE, weights=model.path)
    studio.until_state(JobState.CANCELLED)
    assert studio.creates() == 0


def test_weights_that_are_gone_end_the_job_with_a_sentence(
    studio: Studio, bucket: Any, model: ModelCard, tmp_path: Path
) -> None:
    shutil.copy(Path(model.path) / "config.json", tmp_path)
    studio.submit(request=HERE, weights=str(tmp_path))
    studio.until_state(JobState.FAILED)
    assert "There are no safetensors in" in (studio.row.error or "") and studio.creates() == 0
