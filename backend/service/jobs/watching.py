"""How jobs go and how long they take: the range of what is left, what they use, and what earlier ones took."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from backend.domain.jobs import eta
from backend.domain.jobs.eta import Range, Reading
from backend.domain.jobs.jobs import EvaluateSpec, JobKind, JobState
from backend.service.jobs.jobs import JobView
from backend.service.workspace import Workspace
from backend.store import watching
from backend.store.tables import JobRow

MOST_POINTS = 500
CLOCK_SLACK = timedelta(seconds=1)
"""The worker may stamp its first event a moment before the store stamps the start."""


class Use(NamedTuple):
    """A point of the resource chart: seconds since the attempt began, memory in bytes, processor in percent of one core."""

    at_s: float
    rss_bytes: float
    cpu_percent: float


def time_left(workspace: Workspace, job: JobView, now: datetime | None = None) -> Range | None:
    """The range of what is left of a running job: its own recent rates, else what jobs like it took; None is unknown."""
    if job.state not in {JobState.STARTING, JobState.RUNNING} or job.started_at is None:
        return None
    now = now or datetime.now(UTC)
    with workspace.store.read() as session:
        recent = watching.recent_progress(session, job.id, job.started_at)
    readings = [Reading(e.at, e.progress) for e in recent if e.phase == job.phase and e.progress is not None]
    own = eta.from_rates(readings, now)
    if own is not None:
        return own
    return expected(workspace, job.kind, job.title, elapsed_s=(now - job.started_at).total_seconds())


def expected(workspace: Workspace, kind: str, title: str, *, elapsed_s: float = 0.0) -> Range | None:
    """How long a job may still take, by those of its title that succeeded here, else by those of its kind; None without any."""
    with workspace.store.read() as session:
        same = watching.succeeded(session, kind, title)
        rows = same or watching.succeeded(session, kind)
    took = [seconds for row in rows if (seconds := _took(row)) is not None]
    return eta.from_earlier(took, elapsed_s, like_it=bool(same))


def expected_evaluation(workspace: Workspace, spec: EvaluateSpec) -> Range | None:
    """How long this evaluation may take, by the time a run took in earlier ones, their servers' start included.

    By those with tasks where this one has any, by those without where it has none, as far as there are such.
    """
    with workspace.store.read() as session:
        rows = watching.succeeded(session, JobKind.EVALUATE)
    paces: dict[bool, list[float]] = {True: [], False: []}
    for row in rows:
        options, took = json.loads(row.spec), _took(row)
        runs = _runs(len(options["variants"]), options["options"])
        if took is not None and runs:
            paces[bool(options["options"].get("tasks"))].append(took / runs)
    tasks = bool(spec.options.tasks)
    alike, other = paces[tasks], paces[not tasks]
    found = eta.from_runs(alike or other, _runs(len(spec.variants), spec.options.model_dump()))
    if found is None or alike:
        return found
    return found._replace(basis=f"{found.basis}, {'the tasks not counted' if tasks else 'whose tasks are in it'}")


def _runs(variants: int, options: dict[str, object]) -> int:
    if options.get("sweep"):
        return 0
    one = options.get("ramp") or options.get("trace")
    levels, repeats = [1] if one else options.get("rate") or options.get("concurrency"), options.get("repeats")
    return variants * len(levels) * repeats if isinstance(levels, list | tuple) and isinstance(repeats, int) else 0


def _took(row: JobRow) -> float | None:
    if row.started_at is None or row.finished_at is None:
        return None
    return (row.finished_at - row.started_at).total_seconds()


def resources(workspace: Workspace, job: JobView) -> list[Use]:
    """What the latest attempt used so far: at most MOST_POINTS points, each the highest memory and the mean processor use."""
    if job.started_at is None:
        return []
    with workspace.store.read() as session:
        found = watching.resources(session, job.id, job.started_at - CLOCK_SLACK)
    uses = [
        Use(max(0.0, (e.at - job.started_at).total_seconds()), e.data["rss_bytes"], e.data["cpu_percent"])
        for e in found
        if {"rss_bytes", "cpu_percent"} <= e.data.keys()
    ]
    return thinned(uses, MOST_POINTS)


def thinned(uses: list[Use], most: int) -> list[Use]:
    """At most `most` points: neighbours become one, with the highest memory and the mean processor use among them."""
    every = -(-len(uses) // most)
    if every <= 1:
        return uses
    groups = [uses[start : start + every] for start in range(0, len(uses), every)]
    return [
        Use(group[-1].at_s, max(u.rss_bytes for u in group), sum(u.cpu_percent for u in group) / len(group)) for group in groups
    ]
