"""Searches for the best stack: begin, advance, stop, resume, show.

A search is a row of jobs that is decided as it goes: weights are made once, every round is an evaluation that stays.
Whoever looks advances it: the studio beside its pages, and `whetstone tune` while it waits. What is spent is the time
of its jobs, so a stop costs nothing, and a search goes on where it was after any crash.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from backend.domain.errors import InvalidOptions, NotNow, RequestError
from backend.domain.evaluation.document import EvaluateOptions
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import JobState
from backend.domain.jobs.terms import Terms
from backend.domain.roles import Action
from backend.domain.tuning import ranking, search
from backend.domain.tuning.ranking import Ranked
from backend.domain.tuning.request import GOAL_WORDS, TuneRequest
from backend.domain.tuning.rivals import Rival, list_rivals, pick_as_auto_tune
from backend.domain.tuning.search import Finish, Make, Measure, Progress
from backend.domain.tuning.stacks import WEIGHTS
from backend.domain.tuning.trials import Trial
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.models import models
from backend.service.plans import cases, optimize
from backend.service.tuning import records, seeding, space
from backend.service.tuning.progress import own_sources, read_progress, round_keys, source_of
from backend.service.tuning.records import SearchRecord, StepRecord
from backend.service.tuning.sampler import order_stacks
from backend.service.workspace import Workspace

State = Literal["running", "stopped", "done"]
QUALITY_PROMPTS, SCORED_WINDOWS = 6, 8
REQUESTS_A_STREAM = {"screen": 2, "halve": 3, "race": 3}
WARM_UP_SECONDS = 0.5
BY_BUDGET, BY_STOP = "the budget of its search", "the stop of its search"
"""The cause of a job's cancel, as the job says it: `Cancelled before it started, by ...`."""


class SearchView(Frozen):
    """A search as screens and tools see it."""

    id: str
    title: str
    request: TuneRequest
    owner: str
    created_at: datetime
    state: State
    ended: str | None
    spent_s: float
    left_s: float
    job: JobView | None
    """The job that runs or waits; None between two."""
    steps: tuple[str, ...]
    """A line for each step so far."""
    job_ids: tuple[str | None, ...]
    """The job of each step; None of one that could not be queued."""
    ranked: tuple[Ranked, ...]
    sources: dict[str, str]
    """Key of a measured stack -> the source by which it is served and evaluated."""
    baseline: str
    untried: dict[str, str]
    """Name of each stack that was not measured, and title of weights that were left out -> why."""
    rivals: tuple[Rival, ...]
    """Stacks that the winner is held against."""

    @property
    def winner(self) -> Ranked | None:
        return next((one for one in self.ranked if one.standing == "winner"), None)


class SearchPlan(Frozen):
    """The plan of a search: its space, and the first step with the seconds that it is expected to take."""

    baseline: str
    stacks: tuple[str, ...]
    first: str
    first_seconds: float


def prepare(workspace: Workspace, request: TuneRequest) -> SearchRecord:
    """Check everything that can be checked before any work. Raises UnknownModel, InvalidOptions, ImpossibleStack, and
    what an evaluation of the original raises."""
    workspace.check(Action.SUBMIT)
    # 1. The model and its space.
    model = optimize.require_weights(models.resolve(workspace, request.model))
    baseline, stacks, left_out = space.find_stacks(workspace, model, request.space)
    stacks = seeding.order_by_records(workspace, model, request, stacks)
    rivals = space.find_rivals(workspace, request.against)
    source = model.id if model.origin == "starter" else model.path
    record = SearchRecord(
        id=records.new_id(),
        request=request,
        title=f"{GOAL_WORDS[request.goal]} for {model.id}",
        model_path=source,
        owner=workspace.actor.name,
        created_at=records.now(),
        baseline=baseline,
        stacks=tuple(stacks),
        rivals=rivals,
        left_out=left_out,
    )
    # 2. The load, and the stacks that race along.
    evaluations.prepare(
        workspace,
        [baseline.source(source, {}), *own_sources(request)],
        round_options(request, "screen", 1),
        anyway=True,
    )
    # 3. The budget has room for a first round.
    progress = Progress(baseline=baseline, stacks=tuple(stacks), rivals=rivals)
    step = search.next_step(request, progress, stacks)
    if isinstance(step, Finish):
        least = search.seconds_of(request, progress, Measure(kind="screen", stacks=(stacks[0],), blocks=1))
        raise InvalidOptions(
            f"is wrong: a first round takes about {search.MARGIN * least / 60:.0f} minutes here, and "
            f"{request.budget_min:g} are given: give more, or fewer streams.",
            field="budget_min",
        )
    return record


def plan(workspace: Workspace, request: TuneRequest) -> SearchPlan:
    """Return what the search would do first, without beginning it. Raises as `prepare`."""
    record = prepare(workspace, request)
    progress = Progress(baseline=record.baseline, stacks=record.stacks, rivals=record.rivals)
    step = search.next_step(request, progress, record.stacks)
    seconds = search.make_seconds(progress) if isinstance(step, Make) else 0.0
    if isinstance(step, Measure):
        seconds = search.seconds_of(request, progress, step)
    return SearchPlan(
        baseline=record.baseline.name,
        stacks=tuple(stack.name for stack in record.stacks),
        first=_words(step, record),
        first_seconds=seconds,
    )


def begin(workspace: Workspace, request: TuneRequest) -> SearchView:
    """Begin a search and queue its first step. Raises as `prepare`."""
    record = prepare(workspace, request)
    records.write(workspace, record)
    return advance(workspace, record.id)


def advance(workspace: Workspace, search_id: str) -> SearchView:
    """Queue the next step where the one before has ended, end what runs over the budget, and return the search. Its
    jobs are its owner's, whoever looks; someone who may not submit only looks. Raises NotFound."""
    if workspace.refusal(Action.SUBMIT) is not None:
        return show(workspace, search_id)
    with records.changing(workspace, search_id) as record:
        if record.stopped or record.ended is not None:
            return _view(workspace, record)
        workspace = workspace.acting_as(workspace.actor.model_copy(update={"name": record.owner}))
        job = _current_job(workspace, record)
        progress = read_progress(workspace, record)
        # 1. A step is under way: leave it, unless the budget is over.
        if job is not None and not job.ended:
            over = progress.spent_s > 60 * record.request.budget_min
            if over and not job.cancel_requested:
                _cancel(workspace, job, BY_BUDGET)
            return _view(workspace, record)
        # 2. A person cancelled the step: the search stops too.
        if job is not None and job.state is JobState.CANCELLED and job.cause != BY_BUDGET:
            record = record.model_copy(update={"stopped": True})
            records.write(workspace, record)
            return _view(workspace, record)
        # 3. The next step; one that cannot be queued counts as failed, and the search goes on.
        step = search.next_step(record.request, progress, order_stacks(record.request, progress))
        if isinstance(step, Finish):
            record = record.model_copy(update={"ended": step.reason})
        else:
            record = record.model_copy(
                update={"steps": (*record.steps, _begin_step(workspace, record, step, progress))}
            )
        records.write(workspace, record)
        return _view(workspace, record)


def advance_all(workspace: Workspace) -> None:
    """Advance every search that may go on."""
    for record in records.read_all(workspace):
        if not record.stopped and record.ended is None:
            advance(workspace, record.id)


def stop(workspace: Workspace, search_id: str) -> SearchView:
    """Stop a search; what was measured stays. Raises NotFound, NotNow where it has ended."""
    workspace.check(Action.CANCEL)
    with records.changing(workspace, search_id) as record:
        workspace.check(Action.CANCEL, record.owner)
        if record.ended is not None or record.stopped:
            raise NotNow(f"{search_id} does not run: it {'is stopped' if record.stopped else 'has ended'}.")
        job = _current_job(workspace, record)
        if job is not None and not job.ended:
            _cancel(workspace, job, BY_STOP)
        record = record.model_copy(update={"stopped": True})
        records.write(workspace, record)
        return _view(workspace, record)


def resume(workspace: Workspace, search_id: str) -> SearchView:
    """Let a stopped search go on; the step that was cancelled is begun again. Raises NotFound, NotNow."""
    workspace.check(Action.SUBMIT)
    with records.changing(workspace, search_id) as record:
        if not record.stopped:
            raise NotNow(f"{search_id} is not stopped: there is nothing to resume.")
        job = _current_job(workspace, record)
        steps = record.steps
        if job is not None and job.state is JobState.CANCELLED:
            steps = steps[:-1]
        changed = {"stopped": False, "steps": steps, "resumed": record.resumed + 1}
        records.write(workspace, record.model_copy(update=changed))
    return advance(workspace, search_id)


def show(workspace: Workspace, search_id: str) -> SearchView:
    """Return a search without advancing it. Raises NotFound."""
    return _view(workspace, records.read(workspace, search_id))


def listing(workspace: Workspace, *, limit: int = 20) -> list[SearchView]:
    """Return the searches of the home, the newest first."""
    return [_view(workspace, record) for record in records.read_all(workspace)[:limit]]


def _cancel(workspace: Workspace, job: JobView, cause: str) -> None:
    try:
        jobs.cancel(workspace, job.id, cause)
    except NotNow:  # it ended meanwhile
        return


def _current_job(workspace: Workspace, record: SearchRecord) -> JobView | None:
    last = record.steps[-1] if record.steps else None
    return None if last is None or last.job is None else jobs.show(workspace, last.job)


def _begin_step(workspace: Workspace, record: SearchRecord, step: Make | Measure, progress: Progress) -> StepRecord:
    """Submit the step's job. A request that is refused is the step's failure."""
    # The supervisor ends what runs over the budget, also where nobody looks at the search any more.
    left_s = max(1.0, 60 * record.request.budget_min - progress.spent_s)
    terms = Terms(run_timeout_s=left_s, retries=0)
    key = f"{record.id}-{len(record.steps)}-{record.resumed}"
    try:
        if isinstance(step, Make):
            job = submit_make(workspace, record, step.weights, key, terms)
        else:
            job = _submit_round(workspace, record, step, progress, key, terms)
    except RequestError as error:
        return StepRecord(step=step, failure=str(error))
    return StepRecord(step=step, job=job.id)


def submit_make(
    workspace: Workspace, record: SearchRecord, weights: str, key: str, terms: Terms | None = None
) -> JobView:
    """Queue the job that makes these weights. Raises as `optimize.prepare`."""
    model = optimize.require_weights(models.resolve(workspace, record.request.model))
    case = cases.resolve(workspace, model, WEIGHTS[weights].recipe)
    prepared = optimize.prepare(workspace, case, scored_windows=SCORED_WINDOWS)
    return optimize.submit(workspace, prepared, submission=key, terms=terms)


def _submit_round(
    workspace: Workspace, record: SearchRecord, step: Measure, progress: Progress, key: str, terms: Terms
) -> JobView:
    sources = [source_of(record, progress, one) for one in round_keys(record, step)]
    options = round_options(record.request, step.kind, step.blocks)
    spec = evaluations.prepare(workspace, sources, options, anyway=True)
    return evaluations.submit(workspace, spec, submission=key, terms=terms)


def round_options(request: TuneRequest, kind: str, blocks: int) -> EvaluateOptions:
    """Return the load of a round of that kind. Quality is measured once, when a stack is screened."""
    fields: dict[str, object] = {
        "concurrency": tuple(sorted(set(request.streams))),
        "requests": REQUESTS_A_STREAM[kind] * max(request.streams),
        "max_tokens": request.max_tokens,
        "workload": request.workload,
        "price_per_hour": request.price_per_hour,
        "seed": request.seed,
        "warmup_seconds": WARM_UP_SECONDS,
        "prefix_cache": "per-run",
        "quality": kind == "screen",
        "quality_prompts": QUALITY_PROMPTS,
    }
    if request.max_length_change is not None:
        fields["ignore_eos"] = False
    if kind == "screen":
        fields |= {"tasks": request.tasks, "task_limit": request.task_limit}
    rule: dict[str, object] = {"repeats": blocks}
    if kind == "race":
        rule = {"until_decided": True, "max_blocks": blocks, "same_within": ranking.SAME_WITHIN}
    return evaluations.read_options(**fields, **rule)


def _view(workspace: Workspace, record: SearchRecord) -> SearchView:
    progress = read_progress(workspace, record)
    job = _current_job(workspace, record)
    state: State = "stopped" if record.stopped else "running"
    if record.ended is not None:
        state = "done"
    ranked = ranking.rank(progress.trials, record.request, baseline=record.baseline.key)
    names = {stack.key: stack.name for stack in (*record.stacks, *record.rivals)}
    own = {record.baseline.key: record.baseline.name}
    picked = pick_as_auto_tune(progress.trials, record.request)
    untried = search.untried_words(record.request, progress, may_follow=record.ended is None)
    return SearchView(
        id=record.id,
        title=record.title,
        request=record.request,
        owner=record.owner,
        created_at=record.created_at,
        state=state,
        ended=record.ended,
        spent_s=progress.spent_s,
        left_s=max(0.0, 60 * record.request.budget_min - progress.spent_s),
        job=job if job is not None and not job.ended else None,
        steps=tuple(_words(one.step, record) for one in record.steps),
        job_ids=tuple(one.job for one in record.steps),
        ranked=tuple(one.model_copy(update={"trial": _named(one, names | own)}) for one in ranked),
        sources={one.trial.key: source_of(record, progress, one.trial.key) for one in ranked if one.score is not None},
        baseline=record.baseline.key,
        untried={names[key]: words for key, words in untried.items()} | record.left_out,
        rivals=tuple(list_rivals(ranked, record.request, record.baseline.key, picked, names | own)),
    )


def _named(one: Ranked, names: dict[str, str]) -> Trial:
    """Return the trial under the stack's name, which says engine and settings."""
    return one.trial.model_copy(update={"name": names.get(one.trial.key, one.trial.name)})


def _words(step: Make | Measure | Finish, record: SearchRecord) -> str:
    """Return a step in words, for lists of steps."""
    if isinstance(step, Finish):
        return step.reason
    if isinstance(step, Make):
        return f"Make {search.describe_weights(step.weights)}"
    names = ", ".join(stack.name for stack in step.stacks)
    verb = {"screen": "Try", "halve": "Measure again", "race": "Race"}[step.kind]
    return f"{verb}: {names}"
