"""Jobs: submit, show, list, cancel, retry, clone, resume, reorder, logs, wait."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from backend import channel
from backend.channel import Channel
from backend.domain.errors import JobCancelled, NotNow, RequestError, WorkError
from backend.domain.frozen import Frozen
from backend.domain.jobs.claims import Claim
from backend.domain.jobs.endings import TIMEOUTS, Ending
from backend.domain.jobs.jobs import (
    LIVE,
    RESUMABLE,
    TERMINAL,
    EvaluateSpec,
    Event,
    JobSpec,
    JobState,
)
from backend.domain.jobs.terms import Priority, Terms
from backend.domain.roles import Action
from backend.domain.validation import unreadable
from backend.service.jobs import job_rows, limits, supervisors
from backend.service.workspace import Workspace
from backend.store import history, queue
from backend.store.history import JobFilter
from backend.store.tables import JobRow


class JobView(Frozen):
    """A job as screens and tools see it. `cause`: who or what asked for its cancel; `after`: the job that has to
    succeed first; `ending`: why its latest attempt ended without success; `aside`: put aside until it is released."""

    id: str
    kind: str
    state: JobState
    title: str
    owner: str
    phase: str | None
    message: str | None
    progress: float | None
    eta_s: float | None
    error: str | None
    parent: str | None
    attempt: int
    place: str | None
    """The launcher's name for the place of its latest worker."""
    cancel_requested: bool
    cause: str | None
    after: str | None
    ending: Ending | None
    retried: int
    aside: bool
    not_before: datetime | None
    queue_until: datetime | None
    terms: Terms
    claim: Claim
    yields: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    event_at: datetime | None
    result: dict[str, Any]

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def making_room(self) -> bool:
        """Tell whether the job is being stopped only to be queued again."""
        return self.yields and self.state is JobState.CANCELLING and not self.cancel_requested

    @property
    def words(self) -> str:
        """`Optimize starter with awq: running, layer 3 of 6, 42%, about 12 s left`."""
        parts = [f"{self.title}: {self.state}"]
        if self.ended:
            return parts[0]
        if self.phase:
            parts.append((self.message or self.phase).rstrip("."))
        if self.progress is not None:
            parts.append(f"{self.progress:.0%}")
        if self.eta_s is not None and not self.cancel_requested:
            parts.append(f"about {self.eta_s:.0f} s left")
        return ", ".join(parts)


CANCELLED_BY_SYSTEM = {*TIMEOUTS, Ending.DEPENDENCY}
"""Cancelled by the system: waiting callers see a failure."""
LONGEST_KEY = 200
FollowUpJob = tuple[Callable[[str], JobSpec], str]
"""A job that follows another: a function from the first job's id to its specification, and its title."""
COLUMNS = tuple({"place": "handle"}.get(name, name) for name in JobView.model_fields)
"""Columns of a job's row that a view needs."""


def view(row: JobRow) -> JobView:
    return _view({name: getattr(row, name) for name in COLUMNS})


def _view(columns: Mapping[str, Any]) -> JobView:
    documents = {name: json.loads(columns[name] or "{}") for name in ("result", "terms", "claim")}
    place = json.loads(columns["handle"]).get("place") if columns["handle"] else None
    rest = {name: value for name, value in columns.items() if name != "handle"}
    return JobView.model_validate({**rest, **documents, "place": place})


def submit(
    workspace: Workspace,
    spec: JobSpec,
    title: str,
    *,
    parent: str | None = None,
    submission: str | None = None,
    yields: bool = False,
    terms: Terms | None = None,
    after: str | None = None,
    then: FollowUpJob | None = None,
) -> JobView:
    """Insert one queued job and return it. The same `submission` key twice is one job. A job that `yields` makes room
    for all that do not. `then` is a second job, which starts when this one has succeeded.

    Raises KeyReused if the key's job has another specification, NotNow if the job in `after` has failed, TooMuch if the
    person has reached a limit.
    """
    # 1. Check the specification outside the transaction.
    row = job_rows.make_row(
        workspace, spec, title, parent=parent, submission=submission, yields=yields, terms=terms, after=after
    )
    uses = spec.artifacts(str(workspace.settings.artifacts))

    def work(session: Any) -> JobView:
        # 2. Insert the job, unless its key exists.
        inserted = queue.submit(session, row, artifacts=uses)
        if inserted.id == row.id:
            limits.check_person_limits(workspace, session, row.owner, row.kind)
        # 3. Insert the job that follows it.
        if then is not None:
            named, second = then
            key = f"{submission} then" if submission else None
            follower = job_rows.make_row(
                workspace, named(inserted.id), second, submission=key, terms=terms, after=inserted.id
            )
            if queue.submit(session, follower).id == follower.id:
                limits.check_person_limits(workspace, session, follower.owner, follower.kind)
                workspace.record(session, Action.SUBMIT, follower.id, second)
        return view(inserted)

    return workspace.change(Action.SUBMIT, row.id, work, detail=title, changed=lambda inserted: inserted.id == row.id)


def find_follower(workspace: Workspace, job_id: str) -> JobView | None:
    """Return the first job that was submitted to follow that one; None if there is none."""
    with workspace.store.read() as session:
        jobs = queue.list_followers(session, job_id)
        return view(jobs[0]) if jobs else None


def submission_key(workspace: Workspace, written: str | None) -> str | None:
    """Return the submission key of a person's idempotency key; two people may choose the same. Raises RequestError."""
    if written is None:
        return None
    if not 1 <= len(written) <= LONGEST_KEY:
        raise RequestError(f"A key has 1 to {LONGEST_KEY} characters: shorten {{}}.", "idempotency_key")
    return f"{workspace.actor.name}:{written}"


def show(workspace: Workspace, job_id: str) -> JobView:
    """Raises NotFound."""
    with workspace.store.read() as session:
        return view(queue.get(session, job_id))


def specification(workspace: Workspace, job_id: str) -> dict[str, Any]:
    """The frozen specification as it was submitted."""
    with workspace.store.read() as session:
        document: dict[str, Any] = json.loads(queue.get(session, job_id).spec)
        return document


def specifications(workspace: Workspace, job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the specifications of several jobs by id, in one read."""
    with workspace.store.read() as session:
        return {identity: json.loads(spec) for identity, spec in history.read_specifications(session, job_ids).items()}


def listing(
    workspace: Workspace,
    *,
    states: Sequence[str] | None = None,
    kinds: Sequence[str] = (),
    words: str = "",
    owner: str | None = None,
    limit: int = 50,
    offset: int = 0,
) -> list[JobView]:
    """Newest first; `owner`: only theirs."""
    with workspace.store.read() as session:
        chosen = JobFilter(states or (), kinds, words, owner)
        rows = history.job_columns(session, chosen, COLUMNS, limit=limit, offset=offset)
    return [_view({**row}) for row in rows]


def count(
    workspace: Workspace,
    *,
    states: Sequence[str] = (),
    kinds: Sequence[str] = (),
    words: str = "",
    owner: str | None = None,
) -> int:
    """Return the number of jobs that `listing` would return without a limit."""
    with workspace.store.read() as session:
        return history.count_jobs(session, JobFilter(states, kinds, words, owner))


def active(workspace: Workspace) -> list[JobView]:
    """Return running jobs, then queued jobs in the order in which they will start."""
    with workspace.store.read() as session:
        jobs = history.list_queued(session, [*LIVE, JobState.QUEUED])
        return [view(row) for row in sorted(jobs, key=lambda row: (row.state == JobState.QUEUED, row.yields))]


def timeline(workspace: Workspace, job_id: str) -> list[Event]:
    """Return states, phases, notes, warnings and errors in order, without progress events."""
    with workspace.store.read() as session:
        return history.timeline(session, job_id)


def latest_progress(workspace: Workspace, job_id: str) -> Event | None:
    """Return the newest progress event: done, total, rate."""
    with workspace.store.read() as session:
        return history.latest_progress(session, job_id)


def events(workspace: Workspace, job_id: str, *, after: int = 0) -> list[tuple[int, Event]]:
    with workspace.store.read() as session:
        return history.list_events(session, job_id, after=after)


def logs(workspace: Workspace, job_id: str, *, tail_bytes: int | None = None) -> str:
    """The worker's log, or its last bytes; empty while there is none. Raises NotFound."""
    return _channel(workspace, job_id).log(tail_bytes=tail_bytes)


def side_log(workspace: Workspace, job_id: str, name: str, *, tail_bytes: int | None = None) -> str:
    """Return what a program that the job's latest attempt started printed, or its last bytes. Raises NotFound."""
    return _channel(workspace, job_id).side_log(name, tail_bytes=tail_bytes)


def _channel(workspace: Workspace, job_id: str) -> Channel:
    """Return the channel of the latest attempt, in the home that ran it. Raises NotFound."""
    with workspace.store.read() as session:
        row = queue.get(session, job_id)
    return channel.attempt_channel(workspace.settings, row.id, row.attempt, row.home)


def checkpoint_bytes(workspace: Workspace, job_id: str) -> int:
    """Return the bytes of the job's checkpoints, 0 if it has none."""
    return _channel(workspace, job_id).resume_bytes()


def drop_checkpoints(workspace: Workspace, job_id: str) -> int:
    """Delete the job's checkpoints and return their bytes; a resumed job then starts from the beginning. Raises
    NotFound; NotNow unless the job has ended."""
    workspace.check(Action.DROP_KEPT)
    state = show(workspace, job_id).state
    if state not in TERMINAL:
        raise NotNow(f"Job {job_id} is {state}: what it keeps can be dropped once it has ended.")
    job_channel = _channel(workspace, job_id)
    freed = job_channel.resume_bytes()
    workspace.change(Action.DROP_KEPT, job_id, lambda _: None, detail=f"{freed} bytes")
    job_channel.drop_resume()
    return freed


def cancel(workspace: Workspace, job_id: str, cause: str | None = None) -> JobView:
    """Request the job's cancel. `cause` names who or what asks, by default the actor. Raises NotFound; NotNow if it has
    ended."""
    requester = cause or workspace.actor.name
    return workspace.change(
        Action.CANCEL, job_id, lambda session: view(queue.request_cancel(session, job_id, requester)), detail=cause
    )


def cancel_all_and_stop(workspace: Workspace, cause: str = "the program that queued it, at its end") -> bool:
    """Cancel all queued and running jobs, wait for their end and stop this home's supervisor. Returns False if none
    ran."""
    for job in active(workspace):
        with suppress(NotNow):
            cancel(workspace, job.id, cause)
        wait(workspace, job.id)
    return supervisors.stop(workspace)


def resume(workspace: Workspace, job_id: str) -> JobView:
    """Queue the same job again, from its last checkpoint. Raises NotNow unless it failed, was cancelled or lost;
    TooMuch as `submit`."""

    def put(session: Any) -> JobView:
        limits.check_engine_role(workspace, json.loads(queue.get(session, job_id).spec))
        job = queue.requeue(session, job_id)
        limits.check_person_limits(workspace, session, job.owner, job.kind)
        return view(job)

    return workspace.change(Action.RESUME, job_id, put)


def release(workspace: Workspace, job_id: str) -> JobView:
    """Queue a job again that was put aside. Raises NotNow if it was not."""

    def put(session: Any) -> JobView:
        limits.check_engine_role(workspace, json.loads(queue.get(session, job_id).spec))
        return view(queue.release(session, job_id))

    return workspace.change(Action.RELEASE, job_id, put)


def clone(workspace: Workspace, job_id: str) -> JobView:
    """Submit a new job with the same specification and this job as parent. Raises NotFound; NotNow if it continues an
    evaluation and did not fail, or is of an endpoint."""
    with workspace.store.read() as session:
        row = queue.get(session, job_id)
    queue.require_no_endpoint(row)
    try:
        spec: JobSpec = TypeAdapter(JobSpec).validate_json(row.spec)
    except ValidationError as error:
        raise unreadable(error, f"job {job_id}") from None
    # An evaluation is continued once, or again if that failed.
    if isinstance(spec, EvaluateSpec) and spec.continues and row.state not in RESUMABLE:
        raise NotNow(
            f"Job {job_id} continues {spec.continues.evaluation}, which is done once: continue its own evaluation."
        )
    return submit(
        workspace, spec, row.title, parent=job_id, terms=Terms.model_validate_json(row.terms), after=row.after
    )


def retry(workspace: Workspace, job_id: str) -> JobView:
    """Clone a job that did not succeed. Raises NotNow if it did or is unfinished."""
    state = show(workspace, job_id).state
    if state not in RESUMABLE:
        raise NotNow(
            f"Job {job_id} is {state}: only failed, cancelled and lost jobs are retried; `clone` runs it again."
        )
    return clone(workspace, job_id)


def move_to_front(workspace: Workspace, job_id: str) -> JobView:
    """Raises NotNow unless queued."""
    return workspace.change(Action.MOVE, job_id, lambda session: view(queue.move_to_front(session, job_id)))


def prioritize(workspace: Workspace, job_id: str, priority: Priority) -> JobView:
    """Raises NotNow unless queued."""
    return workspace.change(
        Action.PRIORITIZE, job_id, lambda session: view(queue.prioritize(session, job_id, priority)), detail=priority
    )


def wait(workspace: Workspace, job_id: str) -> JobView:
    """Block until the job has ended; a supervisor is kept running meanwhile."""
    for _ in watch(workspace, job_id):
        pass
    return show(workspace, job_id)


def require_success(job: JobView) -> JobView:
    """Return the ended job if it succeeded. Raises JobCancelled if a person cancelled it, else WorkError."""
    if job.state is JobState.CANCELLED and job.ending not in CANCELLED_BY_SYSTEM:
        raise JobCancelled(job.error)
    if job.state is not JobState.SUCCEEDED:
        raise WorkError(f"{job.error} (job {job.id}: `whetstone jobs logs {job.id}`)")
    return job


def watch(workspace: Workspace, job_id: str, *, every_s: float = 0.25) -> Iterator[JobView]:
    """Yield the job every `every_s` seconds until it has ended, and replace a supervisor that died."""
    while True:
        supervisors.ensure_running(workspace)
        current = show(workspace, job_id)
        yield current
        if current.ended:
            return
        time.sleep(every_s)
