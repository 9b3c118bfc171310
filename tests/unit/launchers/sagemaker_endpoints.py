"""Endpoints on the stand-in for SageMaker."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from backend.domain.deploy.deployment import Deployment
from backend.launchers.deployments import Deployments
from tests.buckets import keys
from tests.fakes.sagemaker.account import Account
from tests.helpers.deployment_cases import DRAFT

FILES = {"model/config.json": 2, "model/weights.safetensors": 6 << 20, "draft/config.json": 2}
HERE = {"region": "us-east-1"}


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    for path, size in FILES.items():
        (tmp_path / "artifact" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "artifact" / path).write_bytes(b"0" * size)
    return tmp_path / "artifact"


@pytest.fixture
def endpoints(aws: Account, bucket: Any) -> Deployments:
    return Deployments("us-east-1", sleep=aws.clock.advance)


def deployed(endpoints: Deployments, artifact: Path, deployment: Deployment = DRAFT, **changes: Any) -> Any:
    chosen = deployment.model_copy(update={**HERE, **changes})
    files = {path: size for path, size in FILES.items() if chosen.draft or not path.startswith("draft/")}
    return endpoints.deploy(chosen, artifact, files, lambda line: None)


def left(aws: Account, bucket: Any) -> list[str]:
    """Names of everything that there is, in the account and in the bucket."""
    aws.clock.advance(3600)
    tables = [aws.tables[name] for name in ("models", "configurations", "targets", "policies", "actions", "alarms")]
    alive = [name for name, row in aws.tables["endpoints"].items() if row["deleted"] is None]
    return [*itertools.chain(*tables), *alive, *keys(bucket, "weights")]


IAM = {
    "s3:ListObjectsV2": "s3:ListBucket",
    "s3:ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "s3:HeadObject": "s3:GetObject",
    "s3:CreateMultipartUpload": "s3:PutObject",
    "s3:UploadPart": "s3:PutObject",
    "s3:CompleteMultipartUpload": "s3:PutObject",
    "s3:DeleteObjects": "s3:DeleteObject",
}
"""What AWS calls the right to an operation, where that is another name."""
