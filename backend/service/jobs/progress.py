"""Progress of jobs: time left, cost, resource use, and expected times from earlier jobs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from backend.domain.evaluation.blocks import stopping_rule
from backend.domain.evaluation.prices import Pricing
from backend.domain.figures import figure
from backend.domain.jobs import eta
from backend.domain.jobs.eta import ProgressReading, TimeLeft
from backend.domain.jobs.jobs import EvaluateSpec, JobKind, JobSpec, JobState, OptimizeSpec
from backend.domain.jobs.kinds import KINDS
from backend.domain.load.load import Load
from backend.domain.load.prompt_lines import default_requests
from backend.domain.needs import job_duration, serving_memory, structure
from backend.domain.needs.hardware_rates import processor_rates
from backend.domain.validation import readable_rows
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.workspace import Workspace
from backend.store import history, job_statistics
from backend.store.tables import JobRow

MAX_POINTS = 500
NOMINAL = processor_rates(1e12)
CLOCK_SLACK = timedelta(seconds=1)
"""The worker may stamp its first event a moment before the store stamps the start."""


class ResourceUse(NamedTuple):
    """A point of the resource chart: seconds since the attempt began, memory in bytes, processor in percent of one
    core."""

    at_s: float
    rss_bytes: float
    cpu_percent: float


class JobCost(NamedTuple):
    """The cost of a job since its attempt began, in the currency of `per_hour`, the hourly price after discounts."""

    spent: float
    per_hour: float

    @property
    def words(self) -> str:
        """`0.0412 USD at 1.2 USD per hour`."""
        return f"{figure(self.spent)} USD at {figure(self.per_hour)} USD per hour"


def find_cost(workspace: Workspace, job: JobView, now: datetime | None = None) -> JobCost | None:
    """Return the attempt's time at an hourly price: the evaluation's own, else `WHETSTONE_PRICE_PER_HOUR`. For a job on
    SageMaker, use the times of AWS and the price of the instance that the result is for.

    Returns None before the job starts, and if no price is set.
    """
    if job.started_at is None:
        return None
    # SageMaker's own times and price.
    if KINDS[job.kind].at_aws:
        spent, price = aws_status(workspace, job).usd, jobs.specification(workspace, job.id)["price_per_hour"]
        return None if spent is None else JobCost(spent, price)
    # The price of the evaluation goes before that of the settings.
    own = jobs.specification(workspace, job.id)["options"] if job.kind == JobKind.EVALUATE else {}
    per_hour = own.get("price_per_hour")
    if per_hour is None:
        per_hour, own = workspace.settings.price_per_hour, {}
    if per_hour is None:
        return None
    hour = Pricing(per_hour=per_hour, discount=own.get("discount", 0.0)).hour
    passed = ((job.finished_at or now or datetime.now(UTC)) - job.started_at).total_seconds()
    return JobCost(max(0.0, passed) / 3600 * hour, hour)


class AwsStatus(NamedTuple):
    """The status in AWS's word; the cost so far in USD, None without a price or an answer yet; and the time of the
    answer."""

    status: str | None
    usd: float | None
    at: datetime | None


def aws_status(workspace: Workspace, job: JobView) -> AwsStatus:
    """Return the last status that AWS reported for an optimization job."""
    if "optimization_job" in job.result:
        return AwsStatus("COMPLETED", job.result.get("usd"), job.finished_at)
    with workspace.store.read() as session:
        event = history.latest_with(session, job.id, "status")
    return AwsStatus(event.data["status"], event.data.get("usd"), event.at) if event else AwsStatus(None, None, None)


def time_left(workspace: Workspace, job: JobView, now: datetime | None = None) -> TimeLeft | None:
    """Return the range of a running job's time left, from its recent rates, else from similar jobs; None if unknown."""
    if job.state not in {JobState.STARTING, JobState.RUNNING} or job.started_at is None:
        return None
    now = now or datetime.now(UTC)
    with workspace.store.read() as session:
        recent = job_statistics.list_recent_progress(session, job.id, job.started_at)
    readings = [ProgressReading(e.at, e.progress) for e in recent if e.phase == job.phase and e.progress is not None]
    own = eta.from_rates(readings, now)
    if own is not None:
        return own
    specifications = [jobs.specification(workspace, job.id)] if job.kind == JobKind.OPTIMIZE else []
    spec = next(iter(readable_rows(specifications, OptimizeSpec.model_validate)), None)
    elapsed_s = (now - job.started_at).total_seconds()
    return expected_time(workspace, job.kind, job.title, spec=spec, elapsed_s=elapsed_s)


def expected_time(
    workspace: Workspace, kind: str, title: str, *, spec: JobSpec | None = None, elapsed_s: float = 0.0
) -> TimeLeft | None:
    """Return the time that a job may still take, from succeeded jobs of the same title; None without any.

    Without such jobs, others of its kind count; optimize jobs (with `spec`) are scaled by their amount of work.
    """
    # Jobs of the same title say most; others of the kind are the second choice.
    with workspace.store.read() as session:
        same = job_statistics.list_succeeded(session, kind, title)
        rows = same or job_statistics.list_succeeded(session, kind)
    # Other models and recipes are comparable only by their pace.
    if not same and isinstance(spec, OptimizeSpec):
        timed = readable_rows(rows, lambda row: (_run_seconds(row), OptimizeSpec.model_validate_json(row.spec)))
        paces = [seconds / _formula_seconds(other) for seconds, other in timed if seconds is not None]
        return eta.from_paces(paces, _formula_seconds(spec), elapsed_s)
    took = [seconds for row in rows if (seconds := _run_seconds(row)) is not None]
    return eta.from_earlier(took, elapsed_s, like_it=bool(same))


def _formula_seconds(spec: OptimizeSpec) -> float:
    """Return the middle of the formula's range in seconds for a nominal processor; only ratios between jobs matter."""
    moved = spec.model.weights_bytes + serving_memory.weights(*structure.apply(spec.model, spec.recipe)).total
    least, most = job_duration.job_seconds(spec.model, spec.recipe, NOMINAL, moved)
    return float((least * most) ** 0.5)


def expected_evaluation_time(workspace: Workspace, spec: EvaluateSpec) -> TimeLeft | None:
    """Return the time that this evaluation may take, from the times of earlier ones (server start included) and its
    requests.

    Earlier evaluations that also have (or do not have) tasks count first.
    """
    # 1. Read the pace of earlier evaluations, with tasks and without.
    with workspace.store.read() as session:
        rows = job_statistics.list_succeeded(session, JobKind.EVALUATE)
    paces: dict[bool, list[tuple[float, eta.EvaluationSize]]] = {True: [], False: []}
    for row in rows:
        options, took = json.loads(row.spec), _run_seconds(row)
        blocks = json.loads(row.result or "{}").get("blocks") or options["options"].get("repeats", 0)
        earlier = (options.get("continues") or {}).get("blocks", 0)
        runs = _count_runs(len(options["variants"]), options["options"], blocks - earlier)
        if took is not None and runs.runs:
            paces[bool(options["options"].get("tasks"))].append((took, runs))
    # 2. Prefer those of the same kind.
    tasks, chosen = bool(spec.options.tasks), spec.options
    alike, other = paces[tasks], paces[not tasks]
    # 3. Estimate the fewest and the most blocks.
    fewest = (
        stopping_rule.blocks_of_tests(chosen.max_blocks)[0]
        if chosen.until_decided
        else chosen.most_blocks - spec.measured
    )
    least, estimate = (
        eta.from_runs(alike or other, _count_runs(len(spec.variants), chosen.model_dump(), blocks))
        for blocks in (fewest, chosen.most_blocks - spec.measured)
    )
    if estimate and least:
        estimate = estimate._replace(low=least.low)
    if estimate is None or alike:
        return estimate
    return estimate._replace(basis=f"{estimate.basis}, {'the tasks not counted' if tasks else 'whose tasks are in it'}")


def _count_runs(variants: int, options: dict[str, Any], blocks: int) -> eta.EvaluationSize:
    """Count runs and rounds of so many blocks. Open levels send requests at their rate, closed levels at their
    concurrency."""
    if options.get("sweep"):
        return eta.EvaluationSize(0, 0)
    one = options.get("ramp") or options.get("trace")
    levels = [1] if one else options.get("rate") or options.get("concurrency")
    if not isinstance(levels, list | tuple):
        return eta.EvaluationSize(0, 0)
    requests, warm = options.get("requests"), options.get("warmup_requests") or 0
    loads = [Load("rate" if options.get("rate") else "closed", level) for level in levels]
    rounds = sum(max(1.0, (requests or default_requests(load)) / load.value) + warm for load in loads)
    return eta.EvaluationSize(variants * len(levels) * blocks, variants * blocks * rounds)


def _run_seconds(row: JobRow) -> float | None:
    if row.started_at is None or row.finished_at is None:
        return None
    return (row.finished_at - row.started_at).total_seconds()


def resource_use(workspace: Workspace, job: JobView) -> list[ResourceUse]:
    """Return the latest attempt's resource use as at most MAX_POINTS points: highest memory and mean processor use of
    each."""
    if job.started_at is None:
        return []
    with workspace.store.read() as session:
        events = job_statistics.list_resources(session, job.id, job.started_at - CLOCK_SLACK)
    uses = [
        ResourceUse(max(0.0, (e.at - job.started_at).total_seconds()), e.data["rss_bytes"], e.data["cpu_percent"])
        for e in events
        if {"rss_bytes", "cpu_percent"} <= e.data.keys()
    ]
    return thin(uses, MAX_POINTS)


def thin(uses: list[ResourceUse], most: int) -> list[ResourceUse]:
    """At most `most` points: neighbours become one, with the highest memory and the mean processor use among them."""
    every = -(-len(uses) // most)
    if every <= 1:
        return uses
    groups = [uses[start : start + every] for start in range(0, len(uses), every)]
    return [
        ResourceUse(group[-1].at_s, max(u.rss_bytes for u in group), sum(u.cpu_percent for u in group) / len(group))
        for group in groups
    ]
