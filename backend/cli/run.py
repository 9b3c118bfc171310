"""Waiting for a job on the command line: progress on standard error, Ctrl-C cancels, the exit code says how it ended."""

from __future__ import annotations

import threading
from contextlib import suppress

from backend.cli.interrupts import ignore, noted
from backend.cli.output import ProgressPrinter
from backend.domain.errors import JobCancelled, NotNow, WorkError
from backend.domain.jobs import JobState
from backend.service import Workspace, jobs
from backend.service.jobs import JobView


def finish(workspace: Workspace, job: JobView) -> JobView:
    """Wait for the job with progress on standard error. Raises WorkError where it failed, JobCancelled where cancelled.

    On Ctrl-C or SIGTERM the job is cancelled, its end waited for, and JobCancelled raised. A verb that submits the job
    itself does both within `interrupts.noted`, so that none comes between.
    """
    with noted() as interrupted:
        ended = _wait(workspace, job, interrupted)
        if not ended.ended:
            ignore()
            raise JobCancelled(f"Interrupted. {_cancelled(workspace, job.id)}")
    if ended.state is JobState.CANCELLED:
        raise JobCancelled(ended.error)
    if ended.state is not JobState.SUCCEEDED:
        raise WorkError(f"{ended.error} (job {ended.id}: `whetstone jobs logs {ended.id}`)")
    return ended


def _wait(workspace: Workspace, job: JobView, interrupted: threading.Event) -> JobView:
    """The job as it ended, or as it is at an interrupt."""
    told, last = ProgressPrinter(), job
    for current in jobs.watch(workspace, job.id):
        told(current)
        last = current
        if interrupted.is_set():
            break
    return last


def _cancelled(workspace: Workspace, job_id: str) -> str:
    """Cancel the job, wait for its end, and say how it ended: it may have done so of itself meanwhile."""
    with suppress(NotNow):
        jobs.cancel(workspace, job_id)
    ended = jobs.wait(workspace, job_id)
    if ended.state is JobState.SUCCEEDED:
        return f"The job had succeeded by then: `whetstone jobs show {job_id}`."
    return ended.error or str(JobCancelled())
