"""The first run: the starter demo, queued once in a home that never had a job, one step after the other.

Nothing is remembered but the jobs themselves. Each step has a submission key of its own, so that it is queued at most once
whoever asks and however often; the next step is queued when the one before has succeeded. Cancelling a step therefore ends
the demo, and resuming it carries the demo on.
"""

from __future__ import annotations

from typing import Literal

from backend.domain.errors import NotNow, RequestError
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import EvaluateSpec, JobSpec, JobState
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.studio import demo
from backend.service.workspace import Workspace
from backend.store import queue

STEPS = (*demo.RECIPES, "evaluate")
State = Literal["active", "waiting", "done", "stopped", "failed"]
KEYS = tuple(f"first-run-{step}" for step in STEPS)


class FirstRun(Frozen):
    """How far the starter demo is: `number` of `steps` is the step of `job`, the latest that was queued.

    `waiting`: the next step is not queued yet; `obstacle` says why it cannot be, None where it will be within a second.
    """

    number: int
    steps: int
    job: JobView
    state: State
    obstacle: str | None = None


def begin(workspace: Workspace) -> JobView | None:
    """What a start of the studio does: queue what comes next, or end the demo where WHETSTONE_NO_DEMO is set."""
    if workspace.settings.no_demo:
        stop(workspace)
        return None
    return advance(workspace)


def advance(workspace: Workspace) -> JobView | None:
    """Queue the first step in a home that never had a job, or the step after one that succeeded; None where nothing is due.

    Raises RequestError where that step cannot be carried out here: the engine it needs is missing, or disk.
    """
    if workspace.settings.no_demo:
        return None
    done = _queued(workspace)
    if not done and jobs.count(workspace) > 0:
        return None
    if done and _state(done[-1], len(done)) != "waiting":
        return None
    spec, title = _step(workspace, done)
    if isinstance(spec, EvaluateSpec):
        spec = evaluations.frozen(workspace, spec)
    return jobs.submit(workspace, spec, f"Starter demo: {title}", submission=KEYS[len(done)], yields=True)


def _queued(workspace: Workspace) -> list[JobView]:
    """The steps there are, in order."""
    with workspace.store.read() as session:
        found = queue.by_submission(session, KEYS)
        return [jobs.view(found[key]) for key in KEYS if key in found]


def _step(workspace: Workspace, done: list[JobView]) -> tuple[JobSpec, str]:
    """The specification and title of the step after these."""
    step = STEPS[len(done)]
    if step != "evaluate":
        prepared = demo.prepare(workspace, step)
        return prepared.spec, f"optimize {demo.MODEL} with {prepared.spec.recipe.name}"
    spec = demo.evaluate_spec(workspace, [str(job.result["artifact"]) for job in done])
    return spec, "evaluate " + ", ".join(variant.name for variant in spec.variants)


def status(workspace: Workspace) -> FirstRun | None:
    """How far it is; None in a home where there was none."""
    found = _queued(workspace)
    if not found:
        return None
    last, number = found[-1], len(found)
    shown = FirstRun(number=number, steps=len(STEPS), job=last, state=_state(last, number))
    if shown.state != "waiting":
        return shown
    if workspace.settings.no_demo:
        return shown.model_copy(update={"state": "stopped"})
    return shown.model_copy(update={"obstacle": _obstacle(workspace, found)})


def _state(last: JobView, number: int) -> State:
    if last.state is JobState.SUCCEEDED and number == len(STEPS):
        return "done"
    if last.state is JobState.CANCELLED or (last.ended and last.cancel_requested):  # asked to stop, it may succeed all the same
        return "stopped"
    if last.state is JobState.SUCCEEDED:
        return "waiting"
    return "failed" if last.ended else "active"


def _obstacle(workspace: Workspace, done: list[JobView]) -> str | None:
    try:
        _step(workspace, done)
    except RequestError as error:
        return str(error)
    return None


def stop(workspace: Workspace) -> JobView | None:
    """Cancel the step that is queued or running, and with it the demo; None where none is, or it was made the person's own."""
    found = _queued(workspace)
    if not found or found[-1].ended or not found[-1].yields:
        return None
    try:
        return jobs.cancel(workspace, found[-1].id)
    except NotNow:  # it ended meanwhile
        return None
