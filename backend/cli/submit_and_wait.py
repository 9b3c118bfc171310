"""Waiting for a job on the command line: progress on standard error, Ctrl-C cancels, the exit code says how it
ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any

import typer

from backend.cli.interrupts import defer_interrupts
from backend.cli.output import ProgressPrinter, emit
from backend.domain.errors import JobCancelled, NotNow
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.jobs import jobs, supervisors
from backend.service.jobs.jobs import JobView

Wait = Annotated[bool, typer.Option("--wait/--detach", help="Wait until the job ends, or leave it running.")]


def submit_and_wait(
    workspace: Workspace, submit: Callable[[], JobView], *, wait: bool = True, as_json: bool = False
) -> JobView:
    """Submit a job and wait for its end; an interrupt between the two also cancels it. Raises as `submit` and
    `wait_for_end`.

    Without `wait`, print that the job is queued and end the command by raising typer.Exit.
    """
    if not wait:
        report_queued(workspace, submit(), as_json=as_json)
        raise typer.Exit
    with defer_interrupts():
        return wait_for_end(workspace, submit())


def report_queued(workspace: Workspace, job: JobView, *, as_json: bool) -> None:
    """Print that a job is queued, and a hint if no supervisor runs."""
    hint = (
        ""
        if supervisors.is_alive(workspace)
        else "\nNo supervisor is running: `whetstone up` starts one and the job with it."
    )
    after = jobs.find_follower(workspace, job.id)
    then = f"\n{after.id} runs after it: {after.title}." if after else ""
    text = f"{job.id} is {job.state}: {job.title}. Watch it with `whetstone jobs show {job.id}`.{then}{hint}"
    emit(job, as_json=as_json, text=text)


def outcome_document(job: JobView, *names: str) -> dict[str, Any]:
    """Return the JSON document of a job's outcome: these fields of its result, or all of them."""
    result = {name: job.result.get(name) for name in names} if names else job.result
    return {"job": job.id, "state": str(job.state), **result}


def wait_for_end(workspace: Workspace, job: JobView) -> JobView:
    """Wait for the job's end, with progress on standard error. Raises WorkError if it failed, JobCancelled if it was
    cancelled.

    Ctrl-C or SIGTERM, however often, cancels the job; its end is still awaited, then JobCancelled is raised.
    """
    with defer_interrupts() as interrupted:
        ended = _wait(workspace, job, interrupted)
        if interrupted.is_set() and ended.state not in (JobState.FAILED, JobState.LOST):
            raise JobCancelled(f"Interrupted. {_cancel_and_wait(workspace, ended)}")
    return jobs.require_success(ended)


def wait_until(workspace: Workspace, job: JobView, ready: Callable[[JobView], bool]) -> JobView:
    """Wait until a job that goes on is ready, with progress on standard error. Raises WorkError if it ended before.

    Ctrl-C or SIGTERM cancels the job; its end is awaited, then JobCancelled is raised.
    """
    with defer_interrupts() as interrupted:
        progress_printer, last = ProgressPrinter(), job
        for current in jobs.watch(workspace, job.id):
            progress_printer(current)
            last = current
            if interrupted.is_set() or current.ended or ready(current):
                break
        if interrupted.is_set() and not last.ended:
            raise JobCancelled(f"Interrupted. {_cancel_and_wait(workspace, last)}")
    return jobs.require_success(last) if last.ended else last


def _wait(workspace: Workspace, job: JobView, interrupted: threading.Event) -> JobView:
    """Return the job at its end, or at an interrupt."""
    progress_printer, last = ProgressPrinter(), job
    for current in jobs.watch(workspace, job.id):
        progress_printer(current)
        last = current
        if interrupted.is_set():
            break
    return last


def _cancel_and_wait(workspace: Workspace, job: JobView) -> str:
    """Cancel the job, wait for its end and return how it ended: it may have succeeded meanwhile."""
    with suppress(NotNow):
        jobs.cancel(workspace, job.id)
    ended = jobs.wait(workspace, job.id)
    if ended.state is JobState.SUCCEEDED:
        return f"The job had succeeded by then: `whetstone jobs show {job.id}`."
    return ended.error or str(JobCancelled())
