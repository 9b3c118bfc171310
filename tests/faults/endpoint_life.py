"""Seeded faults over the life of an endpoint at SageMaker: deploy, prove, update, prove, delete, each until it is done.

A client that is killed makes no call from then on, not even to take something back; what AWS has stays as it is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.client import BaseClient

from backend.aws import objects
from backend.domain.deploy.deployment import Deployment, Idle, Rollout, Scheduled
from backend.domain.errors import NotFound, WhetstoneError
from backend.launchers.deployments import Deployments
from tests.buckets import keys
from tests.fakes.running import running
from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.pointed import bucket_client
from tests.faults.managed import ANSWERS, STORAGE, Storage, Tally, shaky
from tests.helpers.deployment_cases import DRAFT

ENDS = ("failed with a reason", "update taken back by AWS", "served otherwise than deployed")
KILLS = ("client killed", "client killed, then deleted")
LATE = ("update seen late", "lists late", "lists late, client killed, then deleted")
KINDS = (*ANSWERS, *STORAGE, "right taken away", "unknown at first", *LATE, *ENDS, "deleted by others", *KILLS)
TRIES = 16
SMALL = {"model/config.json": 2, "draft/config.json": 2}
FILES = {**SMALL, "model/weights.safetensors": 6 << 20}
"""The last one goes in parts."""
LATE_S = 30.0
LISTED_S = 12.0
FRESH = ("CreateEndpointConfig", "CreateEndpoint", "UpdateEndpoint")
"""Which AWS refuses while it does not see yet what they name."""
TABLES = ("models", "configurations", "targets", "policies", "actions", "alarms")


class Killed(BaseException):
    """The client's process is gone."""


class Life:
    """One endpoint from its deployment to its deletion."""

    def __init__(self, account: Account, bucket: Any, storage: Storage, folder: Path, seed: int) -> None:
        self.storage = storage
        self.random, self.account, self.bucket, self.folder = random.Random(seed), account, bucket, folder
        self.kind, self.injected, self.left = KINDS[seed % len(KINDS)], 0, self.random.randint(1, 6)
        self.id = f"e-{seed}"
        self.killed, self.broken_off = "client killed" in self.kind, "then deleted" in self.kind
        self.files = FILES if self.killed or self.kind in STORAGE else SMALL
        around = {
            "schedule": (Scheduled(at="cron(0 8 ? * MON-FRI *)", minimum=2, maximum=4),),
            "idle": Idle(minutes=30),
        }
        self.first = DRAFT.model_copy(update={"id": self.id, "region": "us-east-1", "bucket": "weights", **around})
        changed = self.random.choice([{"artifact": "a-ffffffffffff"}, {"image": f"{DRAFT.image}-next"}])
        self.second = self.first.model_copy(update=changed)
        self.wrong: list[str] = []
        self.burst: tuple[str, int] | None = None
        self.alive = True
        """Of the client in the command that runs."""
        self.calls = 0
        self.dies_at = 0
        self.broke_off = False

    # what happens to requests

    def choose(self, operation: str) -> str | int | None:
        if self.kind == "unknown at first" and operation != "DescribeAlarms":
            late = operation in FRESH or (operation.startswith("Describe") and self._young())
            return self._count("ResourceNotFound") if late and self.left and self.random.random() < 0.6 else None
        value = "AccessDeniedException" if self.kind == "right taken away" else ANSWERS.get(self.kind)
        if value is None:
            return None
        if self.burst and self.burst[0] == operation and self.burst[1] > 0:
            self.burst = (operation, self.burst[1] - 1)
            return value
        if self.left == 0 or self.random.random() > 0.06:
            return None
        self.burst = (operation, self.random.randint(0, 3))
        return self._count(value)

    def _count(self, fault: str | int) -> str | int:
        self.left, self.injected = self.left - 1, self.injected + 1
        return fault

    def _young(self) -> bool:
        """Whether the endpoint was made a moment ago."""
        row = self._row()
        return row is not None and self.account.clock.now - row["created"] < LATE_S

    def call(self, act: Callable[[], Any]) -> Any:
        """One request of the client, which may be killed before it is sent or after it was."""
        self.calls += 1
        after = self.random.random() < 0.5
        dies = self.calls == self.dies_at
        if not self.alive or (dies and not after):
            self._die()
        answer = act()
        if dies:
            self._die()
        return answer

    def _die(self) -> None:
        if self.alive:
            self._count("")
        self.alive = False
        raise Killed

    def sleep(self, seconds: float) -> None:
        self.account.clock.advance(seconds)
        if self.kind == "deleted by others" and self.left and self._row() is not None and self.random.random() < 0.05:
            self._count("")
            self.left = 0
            del self.account.tables["endpoints"][self.first.endpoint]

    # the life

    def run(self) -> None:
        self.account.choose = self.choose
        self.account.late_s = LISTED_S if self.kind.startswith("lists late") else 0.0
        self.storage.begin(self.kind, self.random)
        self._plans()
        client = Deployments("us-east-1", sleep=self.sleep)
        self._command("deploy", lambda: client.deploy(self.first, self.folder, self.files, _silent), self.first)
        self._command("prove", lambda: client.prove(self.id))
        self.account.tables["container"] = {"ignores_draft": True} if self.kind == ENDS[2] else {}
        self._command(
            "update", lambda: client.update(self.second, Rollout(), self.folder, self.files, _silent), self.second
        )
        self._command("prove", lambda: client.prove(self.id))
        self._command("delete", lambda: client.delete(self.id))
        self.account.choose, self.account.late_s = None, 0.0
        self.injected += self.storage.injected
        self.storage.do = None

    def _plans(self) -> None:
        tables = self.account.tables
        ends = {"ends": "Failed", "reason": "No capacity."} if self.kind == ENDS[0] else {}
        late = {"seen_s": LATE_S} if self.kind == LATE[0] else {}
        back = {"ends": "RolledBack", "reason": "An alarm went off."} if self.kind == ENDS[1] else {}
        tables["endpoint plan"], tables["update plan"], tables["container"] = ends, {**late, **back}, {}
        self.injected += bool(ends or late or back or self.kind in {ENDS[2], *LATE[1:]})

    def _command(self, name: str, act: Callable[[], object], then: Deployment | None = None) -> None:
        """Called again until it is done, or until there is no endpoint."""
        if self.broke_off and name != "delete":
            return
        for _ in range(TRIES):
            before = self._row()
            self._arm()
            ended, error = self._try(act)
            self.account.clock.advance(
                self.random.uniform(0, 3) if self.kind in LATE[1:] else self.random.uniform(1, 120)
            )
            if ended == "done" or (ended == "none" and self._row() is None):
                if name == "delete":
                    self._check_nothing()
                elif then is not None and self._row() is not None:
                    self._check_exactly(then)
                return
            if ended == "killed" and self.broken_off and name != "delete" and self.random.random() < 0.5:
                self.broke_off = True
                return
            self._check_failure(name, before, error)
            self._mend()
        self.wrong.append(f"lost: {name} does not come to an end")

    def _arm(self) -> None:
        self.alive, self.calls, self.dies_at = True, 0, 0
        if self.killed and self.left:
            self.dies_at = self.random.randint(1, 45)

    def _try(self, act: Callable[[], object]) -> tuple[str, str]:
        current.append(self)
        try:
            act()
        except Killed:
            return "killed", ""
        except NotFound as error:
            return "none", str(error)
        except WhetstoneError as error:
            return "failed", str(error)
        finally:
            current.clear()
        return "done", ""

    def _mend(self) -> None:
        """What made it fail is looked after, some time."""
        if self.random.random() < 0.5:
            for plan in ("endpoint plan", "update plan", "container"):
                self.account.tables[plan] = {}

    # what must hold

    def _row(self) -> dict[str, Any] | None:
        row: dict[str, Any] | None = self.account.tables["endpoints"].get(self.first.endpoint)
        return None if row is None or row["deleted"] is not None else row

    def _mine(self, table: str) -> list[str]:
        rows = self.account.tables[table]
        return [
            name
            for name in rows
            if name.startswith(f"{self.first.endpoint}-") or f"endpoint/{self.first.endpoint}/" in name
        ]

    def _check_exactly(self, deployment: Deployment) -> None:
        """That deployment serves, with everything that goes with it, and nothing else is there."""
        counts = {table: len(self._mine(table)) for table in TABLES}
        row = self._row()
        assert row is not None
        if row["EndpointConfigName"] != deployment.version or min(counts.values()) == 0:
            self.wrong.append(f"lost: {row['EndpointConfigName']} serves, with {counts}")
        if max(counts.values()) > 1 or len({key.split("/")[2] for key in self._keys()}) != 1:
            self.wrong.append(f"doubled: {counts}, {self._keys()}")

    def _check_nothing(self) -> None:
        self.account.clock.advance(60)
        remain = [name for table in TABLES for name in self._mine(table)]
        remain += [] if self.broke_off and not self._was() else [*self._keys(), *self._begun()]
        if self._row() is not None or remain:
            self.wrong.append(f"left: {self._row() is not None}, {remain}")

    def _was(self) -> bool:
        """Whether there ever was a model: an upload that was killed before it stays for the next try."""
        return any(each.operation == "CreateModel" and each.answer == 200 for each in self.account.log)

    def _check_failure(self, name: str, before: dict[str, Any] | None, error: str) -> None:
        """What a command that failed leaves is what was there before, or it says so."""
        if (
            name == "deploy"
            and error
            and before is None
            and self._row() is not None
            and "endpoints delete" not in error
        ):
            self.wrong.append(f"left: an endpoint runs after a deploy that failed: {error}")
        if (
            name in {"update", "prove"}
            and before is not None
            and self._row() is None
            and self.kind != "deleted by others"
        ):
            self.wrong.append(f"lost: no endpoint after {name} that failed: {error}")

    def _keys(self) -> list[str]:
        return [key for key in keys(self.bucket, "weights") if key.split("/")[1] == self.id]

    def _begun(self) -> list[str]:
        """Uploads that were not ended, which cost money too."""
        uploads = self.bucket.list_multipart_uploads(Bucket="weights").get("Uploads", [])
        return [each["Key"] for each in uploads if each["Key"].split("/")[1] == self.id]

    def check(self, tally: Tally) -> str | None:
        tally.seeds, tally.injected = tally.seeds + 1, tally.injected + self.injected
        tally.ended["deleted"] += 1
        for word, field in (("lost", "lost"), ("doubled", "doubled"), ("left", "unnoticed")):
            setattr(tally, field, getattr(tally, field) + any(each.startswith(word) for each in self.wrong))
        return f"{self.id} ({self.kind}): {'; '.join(self.wrong)}" if self.wrong else None

    def leave(self) -> None:
        """The account is empty for the next."""
        for table in ("endpoints", *TABLES, "tags", "logs"):
            self.account.tables[table].clear()
        self.account.log.clear()


current: list[Life] = []
"""Whose command runs, if one does."""


def _silent(line: str) -> None:
    """Nobody reads it."""


def _call(client: BaseClient, operation: str, parameters: dict[str, Any]) -> Any:
    if not current:
        return _plain(client, operation, parameters)
    return current[0].call(lambda: _plain(client, operation, parameters))


_plain = BaseClient._make_api_call


@contextmanager
def lives(account: Account, folder: Path) -> Iterator[Callable[[int], Life]]:
    """One bucket for all of them, beside the account that the environment names."""
    weights = folder / "artifact"
    for path, size in FILES.items():
        (weights / path).parent.mkdir(parents=True, exist_ok=True)
        (weights / path).write_bytes(b"0" * size)
    with running("s3.py") as s3, shaky(s3) as (proxy, storage), pytest.MonkeyPatch.context() as patch:
        bucket = bucket_client(s3, "weights", patch, folder)
        patch.setenv("AWS_ENDPOINT_URL_S3", proxy)
        patch.setattr(objects, "PART_BYTES", 5 << 20)
        patch.setattr(BaseClient, "_make_api_call", _call)
        yield lambda seed: Life(account, bucket, storage, weights, seed)
