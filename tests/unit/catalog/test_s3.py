"""Models below an s3:// prefix, against moto's server: the card from ranges, downloads checked, every refusal one
sentence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.catalog.cards.card import read_card
from backend.catalog.remote import sources
from backend.catalog.remote.s3 import S3Source
from backend.domain.errors import (
    AccessRefused,
    InvalidModel,
    RequestError,
    SourceUnreachable,
    UnknownModel,
    WhetstoneError,
    WorkError,
)
from backend.transfer import Digest, download
from tests.buckets import empty_bucket, post
from tests.fakes.running import running
from tests.tiny import tiny_llama

pytestmark = pytest.mark.process

URI = "s3://models/team/tiny"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny", hidden=32, heads=2, kv_heads=1, intermediate=64)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running("s3.py") as url:
        yield url


@pytest.fixture
def s3(address: str, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A client of the server, which holds the model and enforces no policy yet; the environment has credentials for
    it."""
    client = empty_bucket(address, "models", monkeypatch, tmp_path)
    for path in model.iterdir():
        client.put_object(Bucket="models", Key=f"team/tiny/{path.name}", Body=path.read_bytes())
    return client


def refused(kind: type[WhetstoneError], *words: str, uri: str = URI) -> None:
    with pytest.raises(kind) as caught:
        sources.inspect(sources.find(uri))
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in message
    assert message.endswith(".")
    for word in words:
        assert word in message


@pytest.mark.parametrize("uri", [URI, f"{URI}/"])
def test_the_card_of_a_prefix_is_the_card_of_its_files(s3: Any, model: Path, uri: str) -> None:
    result, local = sources.inspect(sources.find(uri)), read_card(model)
    elsewhere = {"id", "path", "origin", "tokenizer_hash"}
    assert result.card.model_dump(exclude=elsewhere) == local.model_dump(exclude=elsewhere)
    assert result.card.id == f"{URI}@{result.revision[:8]}"
    assert not result.must_accept


def test_objects_deeper_down_and_code_are_not_fetched(s3: Any) -> None:
    for name in ("modeling.py", "pytorch_model.bin", "checkpoint-1/config.json", "folder/"):
        s3.put_object(Bucket="models", Key=f"team/tiny/{name}", Body=b"x")
    targets = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert set(sources.inspect(sources.find(URI)).files) == targets


def test_the_download_is_the_model(s3: Any, model: Path, tmp_path: Path) -> None:
    source = sources.find(URI)
    download(source, sources.inspect(source).files, tmp_path / "here", lambda _: None)
    assert read_card(tmp_path / "here").tokenizer_hash == read_card(model).tokenizer_hash
    assert (tmp_path / "here/model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_the_checksum_is_the_objects_own(s3: Any, model: Path) -> None:
    content = (model / "model.safetensors").read_bytes()
    source = S3Source(URI)
    assert source.digest("config.json") == Digest("md5", hashlib.md5((model / "config.json").read_bytes()).hexdigest())
    s3.put_object(Bucket="models", Key="team/tiny/model.safetensors", Body=content, ChecksumAlgorithm="SHA256")
    assert S3Source(URI).digest("model.safetensors") == Digest("sha256", hashlib.sha256(content).hexdigest())
    s3.put_object(Bucket="models", Key="team/tiny/model.safetensors", Body=content, ServerSideEncryption="aws:kms")
    assert S3Source(URI).digest("model.safetensors") is None


def test_an_object_that_came_in_parts_has_no_checksum_of_its_own(s3: Any) -> None:
    key = {"Bucket": "models", "Key": "team/tiny/LICENSE"}
    upload = s3.create_multipart_upload(**key)["UploadId"]
    part = s3.upload_part(**key, UploadId=upload, PartNumber=1, Body=b"words")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(**key, UploadId=upload, MultipartUpload=parts)
    assert S3Source(URI).digest("LICENSE") is None


def test_an_object_changed_after_the_listing_is_not_read(s3: Any, tmp_path: Path) -> None:
    source = sources.find(URI)
    files = sources.inspect(source).files
    s3.put_object(Bucket="models", Key="team/tiny/tokenizer.json", Body=b"{}")
    with pytest.raises(WorkError, match=r"tokenizer\.json was changed or removed"):
        download(source, files, tmp_path / "here", lambda _: None)
    assert not (tmp_path / "here/tokenizer.json").exists()
    assert sources.find(URI).revision != source.revision


def test_a_missing_bucket(s3: Any) -> None:
    refused(UnknownModel, "no bucket `elsewhere`", uri="s3://elsewhere/tiny")


def test_an_empty_prefix(s3: Any) -> None:
    refused(UnknownModel, "nothing directly below s3://models/none/", uri="s3://models/none")
    refused(UnknownModel, "nothing directly below s3://models/team/", uri="s3://models/team")


@pytest.mark.parametrize("uri", ["s3://", "s3:///tiny"])
def test_an_address_without_a_bucket(s3: Any, uri: str) -> None:
    refused(UnknownModel, "s3://bucket/prefix", uri=uri)


@pytest.mark.parametrize("bucket", ["A b", "x" * 300, "-"])
def test_a_name_that_no_bucket_can_have(s3: Any, bucket: str) -> None:
    refused(UnknownModel, "bucket", uri=f"s3://{bucket}/tiny")


def test_a_prefix_has_no_revision(s3: Any) -> None:
    with pytest.raises(RequestError, match="no revisions"):
        sources.find(URI, "main")


def test_without_credentials(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    refused(AccessRefused, "no AWS credentials", "AWS_PROFILE")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    refused(AccessRefused, "AWS_PROFILE names a profile that does not exist")


def test_without_permission(s3: Any, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3

    iam = boto3.Session().client("iam")
    iam.create_user(UserName="guest")
    key = iam.create_access_key(UserName="guest")["AccessKey"]
    post(f"{address}/moto-api/reset-auth", b"0")
    try:
        refused(AccessRefused, "does not accept the credentials", "InvalidAccessKeyId")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        refused(AccessRefused, "refuses to let you read s3://models", "s3:ListBucket")
        refused(AccessRefused, "refuses", uri="s3://models")
    finally:
        post(f"{address}/moto-api/reset-auth", b"inf")


def test_an_address_where_nothing_answers(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    refused(SourceUnreachable, "Cannot reach")


def test_broken_files_are_refused_as_in_a_folder(s3: Any, model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    s3.put_object(
        Bucket="models", Key="team/tiny/config.json", Body=json.dumps(config | {"num_hidden_layers": 3}).encode()
    )
    refused(InvalidModel, "3 layers")
    s3.delete_object(Bucket="models", Key="team/tiny/config.json")
    refused(InvalidModel, f"{URI} has no config.json")


@pytest.mark.parametrize(
    ("listed", "open_"), [("models/team", True), ("x, s3://models/", True), ("models/te", False), ("", False)]
)
def test_where_others_reach_the_studio_only_listed_prefixes_are_read(
    s3: Any, monkeypatch: pytest.MonkeyPatch, listed: str, open_: bool
) -> None:
    monkeypatch.setenv("WHETSTONE_SHARED", "1")
    monkeypatch.setenv("WHETSTONE_SHARED_BUCKETS", listed)
    if open_:
        assert S3Source(URI).name == URI
    else:
        refused(AccessRefused, f"{URI} is not open to those who share this studio", "WHETSTONE_SHARED_BUCKETS")
