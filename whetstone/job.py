"""A job: it runs under a supervisor even if nobody waits for it, also after this Python has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from backend.domain.errors import NotNow
from backend.domain.jobs.jobs import Event, JobState
from backend.service import Workspace
from backend.service.jobs import jobs, supervisors, wait_reasons
from backend.service.jobs.jobs import JobView
from whetstone.html_display import facts_table

T = TypeVar("T")


class Job(Generic[T]):
    """`T` is what it makes: an Artifact, an Evaluation, a Model; None of a job that makes nothing to go on with."""

    def __init__(self, workspace: Workspace, view: JobView, read_result: Callable[[JobView], T]) -> None:
        self._workspace, self._made = workspace, read_result
        self.id, self.title = view.id, view.title

    @property
    def view(self) -> JobView:
        """The job's current view."""
        return jobs.show(self._workspace, self.id)

    @property
    def state(self) -> JobState:
        return self.view.state

    @property
    def waits_for(self) -> str | None:
        """Why it has not started, in a sentence; None where it has, or is about to."""
        reason = wait_reasons.find_reasons(self._workspace, [self.view]).get(self.id)
        return reason.sentence if reason else None

    @property
    def result(self) -> T:
        """The result. Raises NotNow if the job has not ended, WorkError if it failed, JobCancelled if it was
        cancelled."""
        view = self.view
        if not view.ended:
            raise NotNow(f"Job {self.id} is {view.state}: wait for its end first.")
        return self._made(jobs.require_success(view))

    def wait(self, timeout_s: float | None = None) -> T:
        """Wait for the end and return the result. An interrupt or `timeout_s` seconds end only the waiting; the job
        goes on.

        Raises NotNow after `timeout_s`, else as `result`.
        """
        end = None if timeout_s is None else time.monotonic() + timeout_s
        for view in jobs.watch(self._workspace, self.id):
            if end is not None and time.monotonic() > end and not view.ended:
                raise NotNow(f"Job {self.id} is {view.state} after {timeout_s:g} s: wait again, or cancel it.")
        return self.result

    def events(self) -> Iterator[Event]:
        """Yield the job's events from its beginning to its end, as they happen."""
        last = 0
        for _ in jobs.watch(self._workspace, self.id):
            for number, event in jobs.events(self._workspace, self.id, after=last):
                last = number
                yield event

    def log(self, tail_bytes: int | None = None) -> str:
        """Its worker's log, or the last bytes of it."""
        return jobs.logs(self._workspace, self.id, tail_bytes=tail_bytes)

    def cancel(self) -> Job[T]:
        """Cancel the job; `wait` then raises JobCancelled. Nothing half-written remains. Raises NotNow if it has
        ended."""
        jobs.cancel(self._workspace, self.id)
        return self._started(self)

    def resume(self) -> Job[T]:
        """Run the same job again, from its last checkpoint. Raises NotNow unless it failed, was cancelled or lost."""
        jobs.resume(self._workspace, self.id)
        return self._started(self)

    def retry(self) -> Job[T]:
        """Submit a new job with the same specification. Raises NotNow unless it failed, was cancelled or lost."""
        return self._started(Job(self._workspace, jobs.retry(self._workspace, self.id), self._made))

    def _started(self, job: Job[T]) -> Job[T]:
        supervisors.ensure_running(self._workspace)
        return job

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.view.words}>"

    def _repr_html_(self) -> str:
        view = self.view
        known = {
            "Job": self.id,
            "State": view.words,
            "Waits": self.waits_for,
            "Error": view.error,
            "Runs on": view.place,
        }
        return facts_table(self.title, known)
