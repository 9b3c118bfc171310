"""Seeded faults over the life of an optimization job at SageMaker: a real supervisor, the account on loopback, one process.

The checker looks at the account and at the job's row when all is over, and knows nothing of what was injected.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend.domain.jobs.jobs import TERMINAL, JobState
from backend.launchers import sagemaker
from backend.service import Workspace
from tests.fakes.sagemaker.account import Account
from tests.fakes.sagemaker.optimization import end, jobs, plan
from tests.faults.managed import ANSWERS, Tally
from tests.homes import open_home
from tests.optimization_jobs import Studio

LATER = {"right taken away": "AccessDeniedException", "unknown at first": "ResourceNotFound"}
EVENTS = ("stopped by us", "stopped by others", "failed with a reason", "supervisor killed", "limit after a lost answer")
KINDS = (*ANSWERS, *LATER, *EVENTS)
PATIENCE_S = 30.0
SHORT = {"SETTLE_S": 0.3, "GONE_S": 1.0, "SWEEP_S": 0.2}


class Life:
    """One job from its submission to its end, with one kind of fault beside a throttled request now and then."""

    def __init__(self, workspace: Workspace, account: Account, seed: int) -> None:
        self.random, self.account = random.Random(seed), account
        self.kind, self.injected, self.left = KINDS[seed % len(KINDS)], 0, self.random.randint(1, 6)
        self.studio = Studio(workspace, account, f"j-{seed:010d}")
        self.at = self.random.randint(0, 12)
        """The round in which what happens once happens."""
        self.cancelled = self.refused = False

    def choose(self, operation: str) -> str | int | None:
        """What happens to a request."""
        if self.kind == "limit after a lost answer" and operation == "CreateOptimizationJob" and self.injected < 2:
            self.injected += 1
            return ("lost", "ResourceLimitExceeded")[self.injected - 1]
        found = ANSWERS.get(self.kind)
        if operation == "DescribeOptimizationJob" and self.kind in LATER and self.studio.name in jobs(self.account):
            found = LATER[self.kind]
        if found is None or self.left == 0 or self.random.random() < 0.4:
            return None if self.random.random() < 0.95 else "ThrottlingException"
        self.left, self.injected = self.left - 1, self.injected + 1
        return found

    def run(self) -> None:
        """Until the job has ended, or patience has."""
        self.account.choose = self.choose
        if self.kind == "failed with a reason":
            plan(self.account, {"name": self.studio.name, "ends": "FAILED", "reason": "CapacityError: none is free"})
            self.injected += 1
        self.studio.submit()
        late, rounds = time.monotonic() + PATIENCE_S, 0
        while self.studio.row.state not in TERMINAL and time.monotonic() < late:
            self.studio.supervisor.tick()
            if rounds >= self.at:
                self._once()
            self.account.clock.advance(self.random.uniform(0, 120))
            time.sleep(0.004)
            rounds += 1
        self.account.choose = None

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
        tally.seeds, tally.injected = tally.seeds + 1, tally.injected + self.injected
        tally.ended[str(row.state)] += 1
        tally.lost, tally.doubled = tally.lost + lost, tally.doubled + (len(mine) > 1)
        tally.unnoticed += bool(alive and row.state in TERMINAL)
        wrong = [word for word, holds in (("lost", lost), ("doubled", len(mine) > 1), ("left running", bool(alive))) if holds]
        return f"{self.studio.job} ({self.kind}): {', '.join(wrong)}; {row.state}, {row.error}" if wrong else None

    def leave(self) -> None:
        self.studio.leave()


@contextmanager
def lives(account: Account, folder: Path) -> Iterator[Callable[[int], Life]]:
    """One home for all of them, at the account that the environment names."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHORT.items():
            patch.setattr(sagemaker, name, value)
        workspace = open_home(folder / "home")
        yield lambda seed: Life(workspace, account, seed)
