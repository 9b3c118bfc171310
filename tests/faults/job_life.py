"""Seeded faults over the life of an optimization job at SageMaker: a real supervisor, the account on loopback, one
process.

The checker looks at the account and at the job's row when all is over, and knows nothing of what was injected.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backend.aws import objects
from backend.domain.jobs.jobs import TERMINAL, JobState
from backend.launchers import sagemaker
from backend.service import Workspace
from backend.service.jobs import artifacts
from tests.buckets import keys
from tests.fakes.running import running
from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.optimization import end, jobs, plan
from tests.fakes.sagemaker.pointed import bucket_client
from tests.faults.managed import ANSWERS, STORAGE, Storage, Tally, shaky
from tests.homes import open_home
from tests.optimization_jobs import REQUEST, Studio
from tests.small_artifacts import CARD

LATER = {"right taken away": "AccessDeniedException", "unknown at first": "ResourceNotFound"}
EVENTS = (
    "stopped by us",
    "stopped by others",
    "failed with a reason",
    "supervisor killed",
    "limit after a lost answer",
)
CARRIED = (*STORAGE, "supervisor killed while weights are carried")
"""Whose weights go up before, and whose result comes back."""
KINDS = (*ANSWERS, *CARRIED, *LATER, *EVENTS)
FILES = {"config.json": b"{}", "model.safetensors": b"0" * (6 << 20)}
HERE = {
    **REQUEST,
    "OutputConfig": {"S3OutputLocation": "s3://weights/out/"},
    "ModelSource": {"S3": {"S3Uri": "s3://weights/up/SHA256-OF-THE-FILES/"}},
}
PATIENCE_S = 300.0
SHORT = {"SETTLE_S": 0.3, "GONE_S": 1.0, "SWEEP_S": 0.2}


class Life:
    """One job from its submission to its end, with one kind of fault beside a throttled request now and then."""

    def __init__(
        self, workspace: Workspace, account: Account, bucket: Any, storage: Storage, folder: Path, seed: int
    ) -> None:
        self.bucket, self.storage, self.folder = bucket, storage, folder
        self.random, self.account = random.Random(seed), account
        self.kind, self.injected, self.left = KINDS[seed % len(KINDS)], 0, self.random.randint(1, 6)
        self.studio = Studio(workspace, account, f"j-{seed:010d}")
        self.at = self.random.randint(0, 12)
        """The round in which what happens once happens."""
        self.cancelled = False
        self.kills = 3

    def choose(self, operation: str) -> str | int | None:
        """What happens to a request."""
        if self.kind == "limit after a lost answer" and operation == "CreateOptimizationJob" and self.injected < 2:
            self.injected += 1
            return ("lost", "ResourceLimitExceeded")[self.injected - 1]
        value = ANSWERS.get(self.kind)
        if operation == "DescribeOptimizationJob" and self.kind in LATER and self.studio.name in jobs(self.account):
            value = LATER[self.kind]
        if value is None or self.left == 0 or self.random.random() < 0.4:
            return None if self.random.random() < 0.95 else "ThrottlingException"
        self.left, self.injected = self.left - 1, self.injected + 1
        return value

    def run(self) -> None:
        """Until the job has ended, or patience has."""
        self.account.choose = self.choose
        if self.kind == "failed with a reason":
            plan(self.account, {"name": self.studio.name, "ends": "FAILED", "reason": "CapacityError: none is free"})
            self.injected += 1
        self.storage.begin(self.kind, self.random)
        carried = {"request": HERE, "weights": str(self.folder), "parent": CARD} if self.kind in CARRIED else {}
        self.studio.submit(**carried)
        late, rounds = time.monotonic() + PATIENCE_S, 0
        while self.studio.row.state not in TERMINAL and time.monotonic() < late:
            self.studio.supervisor.tick()
            if rounds >= self.at:
                self._once()
            if carried:
                self._result()
            self.account.clock.advance(self.random.uniform(0, 120))
            time.sleep(0.004)
            rounds += 1
        self.account.choose, self.storage.do = None, None
        self.injected += self.storage.injected

    def _result(self) -> None:
        """SageMaker writes it before it says that it is done."""
        place = f"out/{self.studio.name}/"
        if self.studio.name in jobs(self.account) and not keys(self.bucket, "weights", place):
            for name, content in FILES.items():
                self.bucket.put_object(Bucket="weights", Key=f"{place}{name}", Body=content)

    def _once(self) -> None:
        there, self.at = self.studio.name in jobs(self.account), 1 << 30
        match self.kind:
            case "stopped by us":
                self.studio.cancel()
                self.cancelled = True
            case "stopped by others" if there:
                end(self.account, {"name": self.studio.name, "ends": "STOPPED"})
            case "supervisor killed":
                self.studio.again()
            case "supervisor killed while weights are carried":
                self.studio.again()
                self.kills, self.at = self.kills - 1, self.random.randint(1, 40) if self.kills else 1 << 30
            case "stopped by others":
                self.at = 0
                return
            case _:
                return
        self.injected += 1

    def check(self, tally: Tally) -> str | None:
        """Adds to the tally; what is wrong, in words."""
        row = self.studio.row
        mine = {name: job for name, job in jobs(self.account).items() if self.studio.job in name}
        now = self.account.clock.now
        alive = [name for name, job in mine.items() if job.status(now) in {"STARTING", "INPROGRESS"}]
        completed = any(job.status(now) == "COMPLETED" for job in mine.values())
        lost = row.state not in TERMINAL or (completed and row.state != JobState.SUCCEEDED and not self.cancelled)
        lost = lost or (self.kind in CARRIED and not self._carried(mine))
        tally.seeds, tally.injected = tally.seeds + 1, tally.injected + self.injected
        tally.ended[str(row.state)] += 1
        tally.lost, tally.doubled = tally.lost + lost, tally.doubled + (len(mine) > 1)
        tally.unnoticed += bool(alive and row.state in TERMINAL)
        wrong = [
            word for word, holds in (("lost", lost), ("doubled", len(mine) > 1), ("left running", bool(alive))) if holds
        ]
        return f"{self.studio.job} ({self.kind}): {', '.join(wrong)}; {row.state}, {row.error}" if wrong else None

    def _carried(self, mine: dict[str, Any]) -> bool:
        """Whether the weights arrived as they are, and the result became one artifact that verifies."""
        (job,) = mine.values()
        _, _, below = str(job.request["ModelSource"]["S3"]["S3Uri"]).removeprefix("s3://").partition("/")
        there = {
            key.removeprefix(below): self.bucket.get_object(Bucket="weights", Key=key)["Body"].read()
            for key in keys(self.bucket, "weights", below)
        }
        created = [each for each in artifacts.listing(self.studio.workspace) if each.job_id == self.studio.job]
        for each in created:
            artifacts.verify(self.studio.workspace, each.id)
        return there == FILES and len(created) == 1

    def leave(self) -> None:
        self.studio.leave()
        for key in keys(self.bucket, "weights"):
            self.bucket.delete_object(Bucket="weights", Key=key)


@contextmanager
def lives(account: Account, folder: Path) -> Iterator[Callable[[int], Life]]:
    """One home for all of them, at the account that the environment names."""
    weights = folder / "model"
    weights.mkdir()
    for path, content in FILES.items():
        (weights / path).write_bytes(content)
    with pytest.MonkeyPatch.context() as patch, running("s3.py") as s3, shaky(s3) as (proxy, storage):
        for name, value in SHORT.items():
            patch.setattr(sagemaker, name, value)
        bucket = bucket_client(s3, "weights", patch, folder)
        patch.setenv("AWS_ENDPOINT_URL_S3", proxy)
        patch.setattr(objects, "PART_BYTES", 5 << 20)
        workspace = open_home(folder / "home")
        yield lambda seed: Life(workspace, account, bucket, storage, weights, seed)
