"""An environment in which boto3 finds the fake account and credentials for it, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from backend.aws import objects
from backend.endpoint import signer
from tests.buckets import empty_bucket
from tests.fakes.running import running
from tests.fakes.sagemaker.account import REGION, Account
from tests.fakes.sagemaker.server import Levers, serving
from tests.pricing import no_credentials

ROOT = Path(__file__).resolve().parents[3]
SERVICES = ("SAGEMAKER", "SAGEMAKER_RUNTIME", "APPLICATION_AUTO_SCALING", "CLOUDWATCH_LOGS", "CLOUDWATCH")


def point(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str) -> None:
    """botocore itself reads these names."""
    no_credentials(monkeypatch, folder)
    signer.cache_clear()
    named = {f"AWS_ENDPOINT_URL_{service}": url for service in SERVICES}
    for name, value in {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": REGION,
        **named,
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Account]:
    """An empty account in this process, whose clock stands still."""
    account = Account()
    with serving(account) as url:
        point(monkeypatch, tmp_path, url)
        yield account


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running("s3.py") as url:
        yield url


def bucket_client(s3: str, name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    """A client of an empty bucket on that server, where all other calls of AWS go on to the account."""
    created = empty_bucket(s3, name, monkeypatch, folder)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3)
    return created


@pytest.fixture
def bucket(s3: str, aws: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`weights`, empty, beside the account, with parts as small as S3 allows."""
    monkeypatch.setattr(objects, "PART_BYTES", 5 << 20)
    return bucket_client(s3, "weights", monkeypatch, tmp_path)


@contextmanager
def elsewhere() -> Iterator[Levers]:
    """An account in a process of its own, for tests whose supervisor or studio is one."""
    with Popen([sys.executable, "-m", "tests.fakes.sagemaker"], stdout=PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield Levers(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()
