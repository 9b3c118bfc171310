"""`whetstone jobs ...`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from backend import service
from backend.cli.output import Json, emit, out, table
from backend.cli.submit_and_wait import Wait, submit_and_wait
from backend.domain.jobs.jobs import JobState
from backend.domain.jobs.queueing import WaitReason
from backend.domain.jobs.terms import Priority
from backend.service import Workspace
from backend.service.jobs import jobs, progress, supervisors, wait_reasons
from backend.service.jobs.jobs import JobView

app = typer.Typer(no_args_is_help=True)
JobId = Annotated[str, typer.Argument(help="A job id, as `whetstone jobs list` shows it.")]
Mine = Annotated[bool, typer.Option("--mine", help="Only yours.")]


@app.command("list")
def list_jobs(
    state: Annotated[list[str] | None, typer.Option(help="Only jobs in this state. Repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many, newest first.")] = 50,
    mine: Mine = False,
    json: Json = False,
) -> None:
    """List jobs, newest first."""
    workspace = service.open_workspace()
    job_views = jobs.listing(workspace, states=state, owner=workspace.actor.name if mine else None, limit=limit)
    rows = [
        (
            job.id,
            _state_text(job),
            f"{(job.progress or 0):.0%}",
            job.title,
            job.owner,
            f"{job.created_at:%Y-%m-%d %H:%M}",
        )
        for job in job_views
    ]
    text = (
        table(("job", "state", "done", "title", "by", "created (UTC)"), rows)
        if rows
        else "No jobs yet: `whetstone demo` runs the first."
    )
    emit(job_views, as_json=json, text=text)


def _state_text(job: JobView) -> str:
    return f"{job.state}, aside" if job.aside else str(job.state)


@app.command("queue")
def list_queue(json: Json = False) -> None:
    """List running jobs, then waiting jobs in the order they will start, each with its reason."""
    workspace = service.open_workspace()
    job_views = jobs.active(workspace)
    why = wait_reasons.find_reasons(workspace, job_views)
    documents = [job.model_dump(mode="json") | {"waiting": why.get(job.id)} for job in job_views]
    rows = [(job.id, _state_text(job), job.terms.priority, job.title, _queue_sentence(job, why)) for job in job_views]
    text = table(("job", "state", "priority", "title", "waiting"), rows) if rows else "No jobs are running or waiting."
    emit(documents, as_json=json, text=text)


def _queue_sentence(job: JobView, why: dict[str, WaitReason]) -> str:
    if job.id in why:
        return why[job.id].sentence
    return "Next in queue." if job.state is JobState.QUEUED else ""


@app.command()
def show(job: JobId, json: Json = False) -> None:
    """Show one job: state, progress, error, specification, events."""
    workspace = service.open_workspace()
    # 1. Collect the document.
    job_view = jobs.show(workspace, job)
    events = [event.model_dump(mode="json", exclude_none=True) for _, event in jobs.events(workspace, job)]
    names = (
        "id",
        "kind",
        "state",
        "phase",
        "progress",
        "eta_s",
        "error",
        "cause",
        "ending",
        "parent",
        "after",
        "attempt",
        "place",
        "aside",
        "terms",
        "claim",
        "result",
    )
    document = {name: getattr(job_view, name) for name in names}
    why, tried = (
        wait_reasons.find_reasons(workspace, [job_view]).get(job_view.id),
        wait_reasons.attempts(workspace, job_view.id),
    )
    document |= {"waiting": why, "attempts": tried, "spec": jobs.specification(workspace, job), "events": events}
    checkpoint_bytes, spent = jobs.checkpoint_bytes(workspace, job_view.id), progress.find_cost(workspace, job_view)
    document |= {"kept_bytes": checkpoint_bytes, "cost": spent}
    # 2. Write the text: state, place, cost, errors, attempts, checkpoints, events.
    cost = [f"{'Cost' if job_view.ended else 'Cost so far'}: {spent.words}."] if spent else []
    where = [f"{'Ran' if job_view.ended else 'Runs'} on {job_view.place}."] if job_view.place else []
    lines = [
        job_view.words,
        *where,
        *cost,
        *([job_view.error] if job_view.error else []),
        *([why.sentence] if why else []),
    ]
    lines += [f"Attempt {attempt.number} ended: {attempt.ending.words}." for attempt in tried if attempt.ending]
    if checkpoint_bytes and job_view.ended:
        lines.append(
            f"Checkpoints: {checkpoint_bytes / 1e6:.3g} MB. `whetstone jobs resume` uses them, `whetstone jobs "
            "drop` deletes them."
        )
    lines += [f"  {event['at'][11:19]}  {event['message']}" for event in events if event.get("message")]
    emit(document, as_json=json, text="\n".join(lines))


@app.command("drop")
def drop_checkpoints(job: JobId, json: Json = False) -> None:
    """Delete the checkpoints of an ended job. Its record and log stay."""
    freed = jobs.drop_checkpoints(service.open_workspace(), job)
    emit(
        {"id": job, "freed_bytes": freed},
        as_json=json,
        text=f"{freed / 1e6:.3g} MB freed." if freed else "It had no checkpoints.",
    )


@app.command()
def logs(job: JobId) -> None:
    """Print the worker's log, also after a failure or cancel."""
    out(jobs.logs(service.open_workspace(), job), newline=False)


def _add_verb(name: str, help_text: str, act: Callable[[Workspace, str], JobView]) -> None:
    def command(job: JobId, json: Json = False) -> None:
        job_view = act(service.open_workspace(), job)
        emit(job_view, as_json=json, text=job_view.words)

    app.command(name, help=help_text)(command)


def _add_queueing_verb(name: str, help_text: str, act: Callable[[Workspace, str], JobView]) -> None:
    """Add a command that queues a job."""

    def command(job: JobId, wait: Wait = False, json: Json = False) -> None:
        workspace = service.open_workspace()
        ended = submit_and_wait(workspace, partial(act, workspace, job), wait=wait, as_json=json)
        emit(ended, as_json=json, text=ended.words)

    app.command(name, help=help_text)(command)


def _cancel(workspace: Workspace, job: str) -> JobView:
    """Cancel the job, and start a supervisor if none runs: workers go on without one, but only it can stop them."""
    job_view = jobs.cancel(workspace, job)
    if not job_view.ended:
        supervisors.ensure_running(workspace)
    return job_view


_add_verb("cancel", "Stop a job. Nothing half-written remains.", _cancel)
_add_queueing_verb("retry", "Run a job that did not succeed again, as a new job.", jobs.retry)
_add_queueing_verb("clone", "Run the same specification again, as a new job.", jobs.clone)
_add_queueing_verb("resume", "Continue a failed, cancelled or lost job under the same id.", jobs.resume)
_add_queueing_verb("release", "Let a job run again that was put aside.", jobs.release)
_add_verb("move-to-front", "Move a queued job to the front.", jobs.move_to_front)


@app.command()
def prioritize(
    job: JobId, priority: Annotated[Priority, typer.Argument(help="high, normal or low.")], json: Json = False
) -> None:
    """Change the priority of a queued job."""
    job_view = jobs.prioritize(service.open_workspace(), job, priority)
    emit(job_view, as_json=json, text=f"{job_view.id} has {priority} priority.")
