"""The first run: the demo, queued once in a home that never had a job, or when a person asks for it; one step after the
other.

Nothing is remembered but the jobs themselves. Each step has a submission key of its own, so that it is queued at most
once whoever asks and however often; the next step is queued when the one before has succeeded. Cancelling a step
therefore ends the demo, and resuming it carries the demo on. Where the model cannot be fetched, it goes on with the
starter.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal, NamedTuple

from backend.catalog.remote import sources
from backend.domain.errors import NotNow, RequestError
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import EvaluateSpec, JobKind, JobSpec, JobState, OptimizeSpec
from backend.domain.model.facts import ModelCard
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.studio import demo, demo_model, engine_setup
from backend.service.studio.demo_model import NotFetchable
from backend.service.workspace import Workspace
from backend.store import queue

FETCH, EVALUATE = "first-run-fetch", "first-run-evaluate"
OPTIMIZE = tuple(f"first-run-optimize-{number}" for number in range(1, demo.MOST + 1))
KEYS = (FETCH, *OPTIMIZE, EVALUATE)
State = Literal["active", "waiting", "done", "stopped", "failed"]


class FirstRun(Frozen):
    """The state of the demo. `number` of `steps` is the step of `job`, the latest that was queued. `why` names its
    model in one line, None while unknown. `waiting` means that the next step is not queued yet; `obstacle` is the
    reason, None if it will be within seconds, or after the installations of the engines in `awaited`."""

    number: int
    steps: int
    job: JobView
    state: State
    why: str | None = None
    obstacle: str | None = None
    awaited: tuple[str, ...] = ()


class _Step(NamedTuple):
    key: str
    spec: JobSpec
    title: str


def begin(workspace: Workspace) -> JobView | None:
    """Queue the next step when the studio starts, or end the demo if WHETSTONE_NO_DEMO is set."""
    if workspace.settings.no_demo:
        stop(workspace)
    return advance(workspace)


def advance(workspace: Workspace) -> JobView | None:
    """Queue the first step in a home that never had a job, or the step after one that is done; None where nothing is
    due.

    The first step may ask a hub and a package index, which takes seconds. Raises RequestError where a step cannot be
    carried out here: the engine it needs is missing, or disk.
    """
    done = _queued_steps(workspace)
    if not done and not _is_first_run(workspace):
        return None
    if done and (_state(done) != "waiting" or _is_off(workspace, done) or _awaited_engines(workspace, done)):
        return None
    return _submit(workspace, done, yields=done[-1].yields if done else True)


def _is_first_run(workspace: Workspace) -> bool:
    """Tell whether the home never had a job, but for the installations that the studio's start queued."""
    return not workspace.settings.no_demo and engine_setup.count_own_jobs(workspace) == 0


def is_due(workspace: Workspace) -> bool:
    """Tell whether the first step is about to be queued: its sources are being asked."""
    return not workspace.read_only and _is_first_run(workspace) and not _queued_steps(workspace)


def _awaited_engines(workspace: Workspace, done: list[JobView]) -> tuple[str, ...]:
    """Return the engines that are being installed and that the next step, the evaluation, is to measure."""
    if not _is_evaluation_next(workspace, done):
        return ()
    return tuple(engine_setup.NAMES[name] for name in engine_setup.find_under_way(workspace))


def _is_evaluation_next(workspace: Workspace, done: list[JobView]) -> bool:
    optimized = sum(job.kind == JobKind.OPTIMIZE for job in done)
    return optimized > 0 and optimized >= len(demo.valid_recipes(workspace, _model(workspace, done)))


def start(workspace: Workspace) -> JobView:
    """Start the demo at a person's request, or resume the step where it ended. Its jobs do not yield. Raises as
    `advance` does, and NotNow where it is under way or done."""
    done = _queued_steps(workspace)
    state = _state(done) if done else "waiting"
    if state in {"stopped", "failed"}:
        resumed = jobs.resume(workspace, done[-1].id)
        with suppress(NotNow):  # a supervisor was quicker
            resumed = jobs.move_to_front(workspace, resumed.id)
        return resumed
    if state != "waiting":
        raise NotNow(f"The demo is {'done' if state == 'done' else 'under way'}: its latest job is {done[-1].id}.")
    return _submit(workspace, done, yields=False)


def _submit(workspace: Workspace, done: list[JobView], *, yields: bool) -> JobView:
    step = _next_step(workspace, done)
    spec = evaluations.freeze(workspace, step.spec) if isinstance(step.spec, EvaluateSpec) else step.spec
    return jobs.submit(workspace, spec, f"Demo: {step.title}", submission=step.key, yields=yields)


def _queued_steps(workspace: Workspace) -> list[JobView]:
    """The steps there are, in order."""
    with workspace.store.read() as session:
        job_rows = queue.find_by_submission(session, KEYS)
        return [jobs.view(job_rows[key]) for key in KEYS if key in job_rows]


def _is_off(workspace: Workspace, done: list[JobView]) -> bool:
    """WHETSTONE_NO_DEMO ends what a start of the studio began, not what a person asked for."""
    return workspace.settings.no_demo and done[-1].yields


def _next_step(workspace: Workspace, done: list[JobView]) -> _Step:
    """Return the step after these."""
    if not done and demo_model.find_present(workspace) is None:
        with suppress(NotFetchable):
            return _Step(FETCH, demo_model.prepare(workspace).spec, f"fetch {demo_model.NAME}")
    job_views, model = [job for job in done if job.kind == JobKind.OPTIMIZE], _model(workspace, done)
    recipes = demo.valid_recipes(workspace, model)
    if len(job_views) < len(recipes):
        spec: JobSpec = demo.prepare(workspace, model, recipes[len(job_views)]).spec
        return _Step(OPTIMIZE[len(job_views)], spec, f"optimize {model.id} with {recipes[len(job_views)].name}")
    spec = demo.evaluate_spec(workspace, model, [str(job.result["artifact"]) for job in job_views])
    return _Step(EVALUATE, spec, "evaluate " + ", ".join(variant.name for variant in spec.variants))


def _model(workspace: Workspace, done: list[JobView]) -> ModelCard:
    """Return the model of the queued steps; before those the fetched one, or the starter if none could be fetched."""
    for job in done:
        if job.kind == JobKind.OPTIMIZE:
            return OptimizeSpec.model_validate(jobs.specification(workspace, job.id)).model
    return demo_model.find_present(workspace) or demo_model.starter_card(workspace)


def status(workspace: Workspace) -> FirstRun | None:
    """Return the demo's state; None in a home without a demo."""
    job_views = _queued_steps(workspace)
    if not job_views:
        return None
    last, state = job_views[-1], _state(job_views)
    steps = len(job_views) if last.kind == JobKind.EVALUATE else _steps(workspace, job_views)
    shown = FirstRun(number=len(job_views), steps=steps, job=last, state=state, why=_model_choice(workspace, job_views))
    if state != "waiting":
        return shown
    if _is_off(workspace, job_views):
        return shown.model_copy(update={"state": "stopped"})
    if awaited := _awaited_engines(workspace, job_views):
        return shown.model_copy(update={"awaited": awaited})
    return shown.model_copy(update={"obstacle": _obstacle(workspace, job_views)})


def _steps(workspace: Workspace, job_views: list[JobView]) -> int:
    """Fetch, recipes and evaluation."""
    fetch = job_views[0].kind == JobKind.IMPORT
    if fetch and not job_views[0].ended:
        source = str(jobs.specification(workspace, job_views[0].id)["source"])
        return demo.count_tried(starter=False, gguf=sources.is_converted(source)) + 1 + fetch
    model = _model(workspace, job_views)
    starter = model.origin == demo_model.STARTER
    return demo.count_tried(starter=starter, gguf=demo.find_gguf(model) is not None) + 1 + fetch


def _model_choice(workspace: Workspace, job_views: list[JobView]) -> str | None:
    first = job_views[0]
    if first.kind != JobKind.IMPORT:
        return demo_model.describe_choice(_model(workspace, job_views))
    return demo_model.describe_choice(_model(workspace, job_views), first.error) if first.ended else None


def _state(job_views: list[JobView]) -> State:
    last = job_views[-1]
    # asked to stop, it may succeed all the same
    if last.state is JobState.CANCELLED or (last.ended and last.cancel_requested):
        return "stopped"
    if last.state is JobState.SUCCEEDED:
        return "done" if last.kind == JobKind.EVALUATE else "waiting"
    if last.ended:
        return "waiting" if last.kind == JobKind.IMPORT else "failed"  # without the model it goes on with the starter
    return "active"


def _obstacle(workspace: Workspace, done: list[JobView]) -> str | None:
    try:
        _next_step(workspace, done)
    except RequestError as error:
        return str(error)
    return None


def stop(workspace: Workspace) -> JobView | None:
    """Cancel the step that is queued or running, and with it the demo; None where none is, or it was made the person's
    own."""
    job_views = _queued_steps(workspace)
    if not job_views or job_views[-1].ended or not job_views[-1].yields:
        return None
    try:
        return jobs.cancel(workspace, job_views[-1].id)
    except NotNow:  # it ended meanwhile
        return None
