"""Waiting for a job on the command line: progress on standard error, Ctrl-C cancels, the exit code says how it ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from backend.cli.output import ProgressPrinter
from backend.domain.errors import JobCancelled, NotNow, WorkError
from backend.domain.jobs import JobState
from backend.service import Workspace, jobs
from backend.service.jobs import JobView


@contextmanager
def cancels_on_interrupt(workspace: Workspace, job_ids: list[str]) -> Iterator[None]:
    """On Ctrl-C or SIGTERM cancel these jobs, wait until each has ended, and raise JobCancelled."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    earlier = signal.signal(signal.SIGTERM, interrupt) if in_main else None
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _cancel_all(workspace, job_ids)
        said = jobs.show(workspace, job_ids[-1]).error if job_ids else None
        raise JobCancelled(f"Interrupted. {said or JobCancelled()}") from None
    finally:
        if earlier is not None:
            signal.signal(signal.SIGTERM, earlier)


def _cancel_all(workspace: Workspace, job_ids: list[str]) -> None:
    for job_id in job_ids:
        try:
            jobs.cancel(workspace, job_id)
        except NotNow:
            continue
    for job_id in job_ids:
        jobs.wait(workspace, job_id)


def finish(workspace: Workspace, job: JobView) -> JobView:
    """Wait for the job with progress on standard error. Raises WorkError where it failed, JobCancelled where cancelled."""
    with cancels_on_interrupt(workspace, [job.id]):
        ended = jobs.wait(workspace, job.id, on_change=ProgressPrinter())
    if ended.state is JobState.CANCELLED:
        raise JobCancelled(ended.error)
    if ended.state is not JobState.SUCCEEDED:
        raise WorkError(f"{ended.error} (job {ended.id}: `whetstone jobs logs {ended.id}`)")
    return ended
