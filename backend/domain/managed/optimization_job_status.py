"""The status of a managed optimization job by `describe_optimization_job`, and how often to ask for it. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from backend.domain.figures import span
from backend.domain.frozen import Frozen

FINAL = frozenset({"COMPLETED", "FAILED", "STOPPED"})
WORDS = {
    "STARTING": "is being set up",
    "INPROGRESS": "runs",
    "STOPPING": "stops",
    "COMPLETED": "has completed",
    "FAILED": "has failed",
    "STOPPED": "was stopped",
}
UNSAID = "SageMaker gives no reason"


class JobDescription(Frozen):
    """One answer of `describe_optimization_job`. Times are AWS's."""

    name: str
    arn: str
    status: str
    reason: str | None = None
    created: datetime
    started: datetime | None = None
    ended: datetime | None = None
    output: str = ""
    image: str | None = None

    @property
    def final(self) -> bool:
        return self.status in FINAL

    def ran_s(self, now: datetime) -> float:
        """Return the seconds since its start; 0 where it has not started.

        A clock behind AWS's makes nothing negative.
        """
        return max(0.0, ((self.ended or now) - self.started).total_seconds()) if self.started else 0.0

    def cost(self, per_hour: float | None, now: datetime) -> float | None:
        """Return USD at that price; None without one."""
        return None if per_hour is None else self.ran_s(now) / 3600 * per_hour

    def sentence(self, per_hour: float | None, now: datetime) -> str:
        """Return its status, how long it has run and what that costs."""
        return f"SageMaker: {self.name} {WORDS.get(self.status, self.status)}{self._after(per_hour, now)}."

    def failure(self, per_hour: float | None, now: datetime) -> str:
        """Return why there is no result, the reason first."""
        if self.status == "STOPPED":
            head = f"Somebody stopped the optimization job {self.name} in AWS, not from here"
            return f"{head}{self._after(per_hour, now)}: resume the job to begin it again"
        reason = " ".join((self.reason or UNSAID).split()).rstrip(".")
        return f"{reason} (optimization job {self.name}{self._after(per_hour, now)})"

    def result(self, per_hour: float | None, now: datetime) -> dict[str, Any]:
        """Return what is recorded with the job."""
        cost = self.cost(per_hour, now)
        return {
            "output": self.output,
            "image": self.image,
            "optimization_job": self.name,
            "arn": self.arn,
            "seconds": self.ran_s(now),
            "usd": None if cost is None else round(cost, 4),
        }

    def _after(self, per_hour: float | None, now: datetime) -> str:
        cost = self.cost(per_hour, now)
        price = "" if cost is None else f", about {cost:.2f} USD at the price of the instance that it is for"
        return f" after {span(round(self.ran_s(now)))}{price}" if self.started else ""


CONSOLES = {
    "aws": "console.aws.amazon.com",
    "aws-cn": "console.amazonaws.cn",
    "aws-us-gov": "console.amazonaws-us-gov.com",
}
"""Partition -> host of its console."""


def arn_region(arn: str) -> str | None:
    """Return the region of an ARN; None for anything else."""
    parts = arn.split(":")
    return parts[3] if len(parts) > 5 and parts[0] == "arn" else None


def console_url(arn: str, output: str = "") -> str:
    """Return the page of AWS's console.

    SageMaker's of that region, or with `output`, s3://BUCKET/PREFIX, that folder's.
    """
    where, host = arn_region(arn), CONSOLES.get(arn.split(":")[1], CONSOLES["aws"])
    if output:
        bucket, _, prefix = output.removeprefix("s3://").partition("/")
        return f"https://{where}.{host}/s3/buckets/{quote(bucket)}?{urlencode({'region': where, 'prefix': prefix})}"
    return f"https://{where}.{host}/sagemaker/home?region={where}"


def read_description(answer: Mapping[str, Any]) -> JobDescription:
    """Return the parts of the answer that we use."""
    return JobDescription(
        name=answer["OptimizationJobName"],
        arn=answer["OptimizationJobArn"],
        status=answer["OptimizationJobStatus"],
        reason=answer.get("FailureReason"),
        created=answer["CreationTime"],
        started=answer.get("OptimizationStartTime"),
        ended=answer.get("OptimizationEndTime"),
        output=answer.get("OutputConfig", {}).get("S3OutputLocation", ""),
        image=(answer.get("OptimizationOutput") or {}).get("RecommendedInferenceImage"),
    )


class PollingPace:
    """Seconds to the next request.

    Few after a change, ever more while nothing changes, and more while nothing answers.
    """

    def __init__(self, first_s: float = 2.0, most_s: float = 60.0, away_s: float = 300.0) -> None:
        self._first, self._most, self._away, self._next = first_s, most_s, away_s, first_s

    def after_answer(self, *, changed: bool) -> float:
        """Return the seconds to wait after an answer."""
        self._next = self._first if changed else min(self._most, self._next * 1.5)
        return self._next

    def after_silence(self) -> float:
        """Return the seconds to wait after no answer.

        Doubled, with a random part, so that many jobs do not ask in step.
        """
        self._next = min(self._away, self._next * 2)
        return self._next * random.uniform(0.75, 1.25)
