"""kill -9 of the client between any two of its calls: what costs money is listed, and is found again or deleted."""

from __future__ import annotations

import itertools
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from backend.launchers.endpoints import Endpoints
from tests.buckets import keys
from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.pointed import bucket_client, point, s3
from tests.fakes.sagemaker.server import serving
from tests.faults.client import client, tell
from tests.faults.endpoint_life import SMALL, TABLES
from tests.helpers.deployment_cases import DRAFT

__all__ = ["s3"]
pytestmark = [pytest.mark.campaign, pytest.mark.process, pytest.mark.timeout(900)]
FIRST = DRAFT.model_copy(update={"id": "chat", "region": "us-east-1", "bucket": "weights"})
SECOND = FIRST.model_copy(update={"artifact": "a-ffffffffffff"})
MOST = 60
EVERY = 4
"""Of the calls of an update and of a deletion, and every other one of a deploy: all of them take a minute."""


class Place:
    """An account and a bucket with one client."""

    def __init__(self, account: Account, bucket: Any, process: Popen[str], folder: Path) -> None:
        self.account, self.bucket, self.process, self.folder = account, bucket, process, folder

    def does(self, what: str, dies_before: int = 0) -> str:
        required = SECOND if what == "update" else FIRST
        return tell(
            self.process,
            do=what,
            deployment=required.model_dump(mode="json"),
            folder=str(self.folder),
            files=SMALL,
            dies_before=dies_before,
        )

    def serves(self, *artifacts: str) -> None:
        """One endpoint with one of these, and exactly what it needs."""
        (result,) = Endpoints("us-east-1").listing()
        assert result.artifact in artifacts and result.state == "InService"
        counts = {
            table: len(self.account.tables[table]) for table in ("models", "configurations", "endpoints", "targets")
        }
        assert set(counts.values()) == {1}, counts
        assert {key.split("/")[2] for key in keys(self.bucket, "weights")} == {result.artifact}

    def left(self) -> list[str]:
        self.account.clock.advance(60)
        alive = [name for name, row in self.account.tables["endpoints"].items() if row["deleted"] is None]
        begun = [each["Key"] for each in self.bucket.list_multipart_uploads(Bucket="weights").get("Uploads", [])]
        return [
            *alive,
            *itertools.chain(*(self.account.tables[name] for name in TABLES)),
            *keys(self.bucket, "weights"),
            *begun,
        ]

    def listed(self) -> None:
        """What costs money by the hour is on the list."""
        alive = {name for name, row in self.account.tables["endpoints"].items() if row["deleted"] is None}
        assert alive <= {each.name for each in Endpoints("us-east-1").listing()}


@pytest.fixture
def place(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for path, size in SMALL.items():
        (tmp_path / "artifact" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "artifact" / path).write_bytes(b"0" * size)
    account = Account()
    with serving(account) as url:
        point(monkeypatch, tmp_path, url)
        bucket = bucket_client(s3, "weights", monkeypatch, tmp_path)
        with client(url) as process:
            yield Place(account, bucket, process, tmp_path / "artifact")


def test_a_deploy_that_is_killed_at_any_call_is_gone_on_with_or_deleted(place: Place) -> None:
    for number in range(1, MOST, 2):
        ended = place.does("deploy", number)
        place.listed()
        if number % 4 == 1 or ended == "done":
            assert place.does("deploy") == "done", number
            place.serves(FIRST.artifact)
        deleted = place.does("delete")
        assert deleted == "done" or (deleted.startswith("NotFound") and not place.account.tables["models"]), (
            number,
            deleted,
        )
        assert deleted != "done" or place.left() == [], number
        if ended == "done":
            break
        assert ended == "killed", (number, ended)
    assert 15 < number < MOST and place.left() == []


def test_an_update_that_is_killed_at_any_call_is_seen_through(place: Place) -> None:
    for number in range(1, MOST, EVERY):
        assert place.does("deploy") == "done"
        ended = place.does("update", number)
        place.listed()
        assert len(place.account.tables["endpoints"]) == 1
        if number % 8 == 1 or ended == "done":
            assert place.does("update") == "done", number
            place.serves(SECOND.artifact)
        assert place.does("delete") == "done" and place.left() == [], number
        if ended == "done":
            break
        assert ended == "killed", (number, ended)
    assert 15 < number < MOST


def test_a_deletion_that_is_killed_at_any_call_is_gone_on_with(place: Place) -> None:
    for number in range(1, MOST, EVERY):
        assert place.does("deploy") == "done"
        ended = place.does("delete", number)
        place.listed()
        again = place.does("delete")
        assert again == "done" or again.startswith("NotFound"), (number, again)
        assert place.left() == [], number
        if ended == "done":
            break
        assert ended == "killed", (number, ended)
    assert 8 < number < MOST
