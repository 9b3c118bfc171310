"""Optimization jobs: STARTING, INPROGRESS, then COMPLETED or FAILED by the account's clock; STOPPING, then STOPPED.

A bucket is not looked at: what the job would have written is its output location alone. The lever `plan` says how the
jobs go whose name holds `name`; `end` ends one at once, as another person or the service would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.fakes.sagemaker.account import Account, Refused, lever, operation
from tests.fakes.sagemaker.shapes import moment

IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/djl-inference:0.36.0-lmi18.0.0-cu128"
FINAL = frozenset({"COMPLETED", "FAILED", "STOPPED"})
TYPES = {
    "ModelQuantizationConfig": "Quantization",
    "ModelCompilationConfig": "Compilation",
    "ModelShardingConfig": "Sharding",
    "ModelSpeculativeDecodingConfig": "SpeculativeDecoding",
}


@dataclass
class Plan:
    """Seconds in each state, and how it ends: COMPLETED, FAILED with a reason, or STOPPED by somebody else."""

    name: str = ""
    starting_s: float = 120.0
    running_s: float = 1200.0
    stopping_s: float = 60.0
    ends: str = "COMPLETED"
    reason: str | None = None
    image: str | None = IMAGE


@dataclass
class Job:
    request: dict[str, Any]
    arn: str
    created: float
    plan: Plan = field(default_factory=Plan)
    stop_at: float | None = None

    def status(self, now: float) -> str:
        if self.stop_at is not None:
            return "STOPPED" if now - self.stop_at >= self.plan.stopping_s else "STOPPING"
        ran = now - self.created
        if ran < self.plan.starting_s:
            return "STARTING"
        return "INPROGRESS" if ran < self.plan.starting_s + self.plan.running_s else self.plan.ends

    def ended(self, now: float) -> float | None:
        if self.status(now) not in FINAL:
            return None
        stopped = None if self.stop_at is None else self.stop_at + self.plan.stopping_s
        return stopped or self.created + self.plan.starting_s + self.plan.running_s

    def started(self, now: float) -> float | None:
        at = self.created + self.plan.starting_s
        return at if now >= at and (self.stop_at is None or at < self.stop_at) else None


def jobs(account: Account) -> dict[str, Job]:
    return account.tables["optimization"]


def running(account: Account) -> list[str]:
    """The names of those that cost money now."""
    return [name for name, job in jobs(account).items() if job.status(account.clock.now) not in FINAL]


@operation("sagemaker", "CreateOptimizationJob")
def create(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    name = request["OptimizationJobName"]
    if name in jobs(account):
        raise Refused("ResourceInUse", f"Optimization job with name {name} already exists.")
    plans = account.tables["plans"].values()
    plan = next((plan for plan in reversed(list(plans)) if plan.name in name), Plan())
    job = jobs(account)[name] = Job(request, account.arn("optimization-job", name), account.clock.now, plan)
    return {"OptimizationJobArn": job.arn}


@operation("sagemaker", "DescribeOptimizationJob")
def describe(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    job, now = _require_job(account, request), account.clock.now
    status = job.status(now)
    ended, started = job.ended(now), job.started(now)
    reason = job.plan.reason or "The model cannot be quantized." if status == "FAILED" else None
    by_name = {name: value for name, value in job.request.items() if name != "Tags"}
    return {
        **by_name,
        "OptimizationJobArn": job.arn,
        "OptimizationJobStatus": status,
        "CreationTime": moment(job.created),
        "LastModifiedTime": moment(ended or started or job.created),
        "FailureReason": reason,
        "OptimizationStartTime": moment(started) if started else None,
        "OptimizationEndTime": moment(ended) if ended else None,
        "OptimizationOutput": {"RecommendedInferenceImage": job.plan.image} if status == "COMPLETED" else {},
    }


@operation("sagemaker", "ListOptimizationJobs")
def listed(account: Account, request: dict[str, Any]) -> dict[str, Any]:
    now, required = account.clock.now, request.get("NameContains", "")
    rows = [
        {
            "OptimizationJobName": name,
            "OptimizationJobArn": job.arn,
            "CreationTime": moment(job.created),
            "OptimizationJobStatus": job.status(now),
            "DeploymentInstanceType": job.request["DeploymentInstanceType"],
            "OptimizationTypes": [TYPES[key] for config in job.request["OptimizationConfigs"] for key in config],
        }
        for name, job in sorted(jobs(account).items(), key=lambda each: -each[1].created)
        if required in name and request.get("StatusEquals") in {None, job.status(now)}
    ]
    first, size = int(request.get("NextToken") or 0), request.get("MaxResults", 10)
    more = str(first + size) if first + size < len(rows) else None
    return {"OptimizationJobSummaries": rows[first : first + size], "NextToken": more}


@operation("sagemaker", "StopOptimizationJob")
def stop(account: Account, request: dict[str, Any]) -> None:
    job = _require_job(account, request)
    if job.status(account.clock.now) in FINAL:
        raise Refused(
            "ValidationException", f"The job {request['OptimizationJobName']} has ended and cannot be stopped."
        )
    job.stop_at = job.stop_at or account.clock.now


@operation("sagemaker", "DeleteOptimizationJob")
def delete(account: Account, request: dict[str, Any]) -> None:
    if _require_job(account, request).status(account.clock.now) not in FINAL:
        raise Refused(
            "ValidationException", f"The job {request['OptimizationJobName']} is running and cannot be deleted."
        )
    del jobs(account)[request["OptimizationJobName"]]


@lever("plan")
def plan(account: Account, settings: dict[str, Any]) -> None:
    """How the next jobs go."""
    account.tables["plans"][str(len(account.tables["plans"]))] = Plan(**settings)


@lever("end")
def end(account: Account, settings: dict[str, Any]) -> None:
    """`ends` the job `name` now: COMPLETED, FAILED with a `reason`, or STOPPED."""
    job, now = jobs(account)[settings["name"]], account.clock.now
    if settings["ends"] == "STOPPED":
        job.stop_at = now - job.plan.stopping_s
    else:
        job.plan = Plan(starting_s=0, running_s=now - job.created, ends=settings["ends"], reason=settings.get("reason"))


def _require_job(account: Account, request: dict[str, Any]) -> Job:
    name = request["OptimizationJobName"]
    if name not in jobs(account):
        raise Refused("ResourceNotFound", f"Optimization job {name} does not exist.")
    return jobs(account)[name]
