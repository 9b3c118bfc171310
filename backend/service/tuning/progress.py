"""Results of the steps of a search so far, as its jobs and evaluations say."""

from __future__ import annotations

from datetime import UTC, datetime

from backend.domain.errors import WhetstoneError
from backend.domain.jobs.jobs import JobState
from backend.domain.tuning.request import TuneRequest
from backend.domain.tuning.rivals import AUTO_TUNE
from backend.domain.tuning.search import MadeWeights, Make, Measure, Progress
from backend.domain.tuning.stacks import Stack
from backend.domain.tuning.trials import Round, Trial, read_trials
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts, jobs
from backend.service.jobs.jobs import JobView
from backend.service.tuning.records import SearchRecord, StepRecord
from backend.service.workspace import Workspace


def read_progress(workspace: Workspace, record: SearchRecord) -> Progress:
    """Return what came of the steps so far; a step under way has taken its time until now."""
    weights: dict[str, MadeWeights] = {}
    rounds: list[Round] = []
    for one in record.steps:
        job = None if one.job is None else jobs.show(workspace, one.job)
        if isinstance(one.step, Make):
            weights[one.step.weights] = _read_make(workspace, one, job)
        else:
            rounds.append(_read_round(workspace, record, one, one.step, job))
    return Progress(
        baseline=record.baseline,
        stacks=record.stacks,
        rivals=record.rivals,
        weights=weights,
        rounds=tuple(rounds),
    )


def _seconds(job: JobView | None) -> float:
    """Return the seconds that a job has run."""
    if job is None or job.started_at is None:
        return 0.0
    return ((job.finished_at or datetime.now(UTC)) - job.started_at).total_seconds()


def _failure(one: StepRecord, job: JobView | None) -> str | None:
    """Return why a step gave nothing; None where it did or still may."""
    if job is None:
        return one.failure or "it was not begun"
    if not job.ended or job.state is JobState.SUCCEEDED:
        return None
    return job.error or f"job {job.id} ended as {job.state}"


def _read_make(workspace: Workspace, one: StepRecord, job: JobView | None) -> MadeWeights:
    artifact = str(job.result["artifact"]) if job is not None and "artifact" in job.result else None
    size = artifacts.show(workspace, artifact).manifest.bytes_after if artifact is not None else 0
    return MadeWeights(seconds=_seconds(job), artifact=artifact, failure=_failure(one, job), bytes=size)


def _read_round(
    workspace: Workspace, record: SearchRecord, one: StepRecord, step: Measure, job: JobView | None
) -> Round:
    keys = round_keys(record, step)
    trials: tuple[Trial, ...] = ()
    failure = _failure(one, job)
    if job is not None and "evaluation" in job.result:
        try:
            view = evaluations.show(workspace, str(job.result["evaluation"]))
        except WhetstoneError as error:
            failure = str(error)
        else:
            percentile = record.request.limits.percentile
            baseline = record.baseline.key
            trials = read_trials(view.document, view.id, step.kind, keys, percentile, baseline=baseline)
    own = tuple(stack.key for stack in step.stacks)
    return Round(kind=step.kind, keys=own, blocks=step.blocks, seconds=_seconds(job), trials=trials, failure=failure)


def round_keys(record: SearchRecord, step: Measure) -> list[str]:
    """Return the keys of a round's variants. The leader comes first in a race, since all are compared with the first;
    else the original, against which quality is measured."""
    own = [stack.key for stack in step.stacks]
    if step.kind == "race":
        return [*own, record.baseline.key, *own_sources(record.request)]
    return [record.baseline.key, *own]


def own_sources(request: TuneRequest) -> list[str]:
    """Return the sources of a user's own stacks."""
    return [source for source in request.against if source != AUTO_TUNE]


def source_of(record: SearchRecord, progress: Progress, key: str) -> str:
    """Return the source of a stack, or that of one which races against it."""
    stack = _stack(record, key)
    if stack is None:
        return key
    there = {weights: one.artifact for weights, one in progress.weights.items() if one.artifact is not None}
    return stack.source(record.model_path, there)


def _stack(record: SearchRecord, key: str) -> Stack | None:
    return next((stack for stack in (record.baseline, *record.stacks, *record.rivals) if stack.key == key), None)
