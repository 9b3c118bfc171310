"""A home whose supervisor has an optimization job at the account on loopback."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from backend.domain.jobs.claims import Claim
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.jobs import JobState, ManagedSpec
from backend.domain.managed.optimization_job_status import PollingPace
from backend.domain.managed.optimization_requests import job_name
from backend.domain.recipe.recipe import read
from backend.launchers.sagemaker import SageMakerLauncher
from backend.service import Workspace
from backend.store import history, queue
from backend.store.tables import JobRow
from backend.supervisor.supervisor import Supervisor
from tests.fakes.sagemaker.account import Account

REQUEST: dict[str, Any] = {
    "RoleArn": "arn:aws:iam::123456789012:role/r",
    "ModelSource": {"S3": {"S3Uri": "s3://b/m/"}},
    "DeploymentInstanceType": "ml.g6.12xlarge",
    "OutputConfig": {"S3OutputLocation": "s3://b/out/"},
    "OptimizationConfigs": [{"ModelQuantizationConfig": {"OverrideEnvironment": {"OPTION_QUANTIZE": "awq"}}}],
    "StoppingCondition": {"MaxRuntimeInSeconds": 36000},
}
JOB = "j-0123456789"
BETWEEN_S = 0.02


class Studio:
    """A home with its supervisor; `again` is the next one, as after a crash of the first."""

    def __init__(self, workspace: Workspace, account: Account, job: str = JOB) -> None:
        self.job, self.name = job, job_name(job, 1)
        self.workspace, self.account, self.launchers = workspace, account, list[SageMakerLauncher]()
        self.again()

    def leave(self) -> None:
        """Its followers end, as with their process."""
        for follower in [each for launcher in self.launchers for each in launcher._followers.values()]:
            follower.stop()
            if follower._thread is not None:
                follower._thread.join(10)

    def again(self) -> None:
        self.leave()
        clock = self.account.clock
        launcher = SageMakerLauncher(
            self.workspace.settings,
            pace=lambda: PollingPace(BETWEEN_S, BETWEEN_S, BETWEEN_S),
            clock=lambda: datetime.fromtimestamp(clock.now, UTC),
        )
        self.launchers.append(launcher)
        self.supervisor = Supervisor(self.workspace.settings, self.workspace.store, launcher)
        self.supervisor.begin()

    def submit(self, **more: Any) -> None:
        """`more`: of the specification."""
        spec = ManagedSpec(
            model="m",
            recipe=read({"steps": [{"quantize": {"method": "awq"}}]}),
            target="sagemaker:ml.g6.12xlarge",
            price_per_hour=6.0,
            **{"request": REQUEST, **more},
        )
        row = JobRow(
            id=self.job,
            kind="managed",
            state=JobState.QUEUED,
            title="t",
            owner="t",
            terms="{}",
            claim=Claim(cores=0, gpus=()).text,
            spec=spec.model_dump_json(),
        )
        self.workspace.store.run(lambda session: queue.submit(session, row))

    def until(self, holds: Callable[[], object], what: str = "") -> None:
        """Rounds, as the supervisor's process has them, until that holds."""
        late = time.monotonic() + 120
        while not holds():
            assert time.monotonic() < late, (
                what,
                self.row,
                self.messages,
                [(one.operation, one.answer) for one in self.account.log],
            )
            self.supervisor.tick()
            time.sleep(0.01)

    def until_state(self, *states: JobState) -> None:
        self.until(lambda: self.row.state in states, str(states))

    def until_status(self, status: str) -> None:
        self.until(lambda: f"{self.name} {status}" in self.messages, status)

    @property
    def row(self) -> JobRow:
        with self.workspace.store.read() as session:
            return queue.get(session, self.job)

    @property
    def messages(self) -> str:
        with self.workspace.store.read() as session:
            return " ".join(event.message or "" for _, event in history.list_events(session, self.job))

    @property
    def result(self) -> dict[str, Any]:
        return history.read_result(self.row)

    def cancel(self) -> None:
        self.workspace.store.run(lambda session: queue.request_cancel(session, self.job, "a person", Ending.PERSON))

    def creates(self) -> int:
        return len(self.account.requests_for("CreateOptimizationJob"))
