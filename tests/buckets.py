"""moto's S3 for tests: an environment that leads there, an empty bucket, and a proxy before it that breaks what a test
says."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest


def post(url: str, body: bytes = b"") -> None:
    urllib.request.urlopen(
        urllib.request.Request(url, data=body, method="POST", headers={"Content-Type": "text/plain"}), timeout=10
    ).close()


def empty_bucket(address: str, name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    """A client of the server, which holds that bucket alone and enforces no policy yet; the environment has
    credentials."""
    import boto3

    environment = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(folder / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    for variable in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    post(f"{address}/moto-api/reset")
    client = boto3.Session().client("s3")
    client.create_bucket(Bucket=name)
    return client


def keys(client: Any, bucket: str, below: str = "") -> list[str]:
    return sorted(each["Key"] for each in client.list_objects_v2(Bucket=bucket, Prefix=below).get("Contents", []))


def faults(proxy: str, *items: dict[str, Any]) -> None:
    """What happens to later requests through the proxy (`tests/fakes/faulty.py`)."""
    post(f"{proxy}/faults", json.dumps(items).encode())
