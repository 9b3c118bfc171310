"""Waiting for a job on the command line: progress on standard error, Ctrl-C cancels, the exit code says how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from backend.cli.interrupts import noted
from backend.cli.output import ProgressPrinter
from backend.domain.errors import JobCancelled, NotNow
from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView


def submit_and_finish(workspace: Workspace, submit: Callable[[], JobView]) -> JobView:
    """`finish` of the job that `submit` makes; an interrupt between the two cancels it too. Raises what both do."""
    with noted():
        return finish(workspace, submit())


def finish(workspace: Workspace, job: JobView) -> JobView:
    """Wait for the job with progress on standard error. Raises WorkError where it failed, JobCancelled where cancelled.

    On Ctrl-C or SIGTERM, however often, the job is cancelled, its end waited for, and JobCancelled raised.
    """
    with noted() as interrupted:
        ended = _wait(workspace, job, interrupted)
        if interrupted.is_set() and ended.state not in (JobState.FAILED, JobState.LOST):
            raise JobCancelled(f"Interrupted. {_cancelled(workspace, ended)}")
    return jobs.succeeded(ended)


def _wait(workspace: Workspace, job: JobView, interrupted: threading.Event) -> JobView:
    """The job as it ended, or as it is at an interrupt."""
    progress_printer, last = ProgressPrinter(), job
    for current in jobs.watch(workspace, job.id):
        progress_printer(current)
        last = current
        if interrupted.is_set():
            break
    return last


def _cancelled(workspace: Workspace, job: JobView) -> str:
    """Cancel the job, wait for its end, and say how it ended: it may have done so of itself meanwhile."""
    with suppress(NotNow):
        jobs.cancel(workspace, job.id)
    ended = jobs.wait(workspace, job.id)
    if ended.state is JobState.SUCCEEDED:
        return f"The job had succeeded by then: `whetstone jobs show {job.id}`."
    return ended.error or str(JobCancelled())
