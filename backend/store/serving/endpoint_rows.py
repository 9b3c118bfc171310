"""Endpoints of this studio's machines: what a person wants of them, and the jobs that supervisors give them.

Each endpoint that is to run has one live job. Two supervisors may see at the same time that it has none: the number of
its jobs so far (`generation`) changes in one UPDATE that names it, so that one of them submits the next job.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, or_, update
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from backend.domain.errors import NotFound, NotNow, Unreadable
from backend.domain.jobs.claims import Claim
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.jobs import LIVE, TERMINAL, EndpointSpec, JobKind, JobState
from backend.domain.jobs.restarts import decide_restart
from backend.domain.jobs.terms import Terms
from backend.domain.validation import unreadable
from backend.store import history, leases, queue
from backend.store.tables import EndpointRow, JobRow

COUNTS = ("loads", "requests", "failed_requests", "loaded_s")
"""Figures of a job's worker that are added to its endpoint's when the job has ended; besides `restarts`."""
FRESH: dict[str, Any] = {"crashes": 0, "not_before": None, "reason": None, "restarts": 0} | dict.fromkeys(COUNTS, 0)
"""Columns of an endpoint that a person has just started."""
EndpointAndJob = tuple[EndpointRow, JobRow | None]


def add(session: Session, row: EndpointRow) -> bool:
    """Insert an endpoint; False, and nothing is changed, where its name or its port is taken."""
    try:
        with session.begin_nested():
            session.add(row)
            session.flush()
    except IntegrityError:
        return False
    return True


def find(session: Session, name: str) -> EndpointAndJob | None:
    """Return the endpoint and its latest job."""
    return next(iter(_with_jobs(session, EndpointRow.name == name)), None)


def get(session: Session, name: str) -> EndpointAndJob:
    """Return the endpoint and its latest job. Raises NotFound."""
    pair = find(session, name)
    if pair is None:
        names = ", ".join(session.exec(select(EndpointRow.name).order_by(col(EndpointRow.name)).limit(20))) or "none"
        raise NotFound(f"There is no endpoint `{name[:80]}` on this studio's machines: there is {names}.")
    return pair


def list_all(session: Session) -> list[EndpointAndJob]:
    """Return all endpoints by name, each with its latest job."""
    return _with_jobs(session)


def list_of_host(session: Session, host: str) -> Sequence[EndpointRow]:
    """Return the endpoints of that host that are to run and are not given up, by name."""
    return session.exec(select(EndpointRow).where(*_running_on(host)).order_by(col(EndpointRow.name))).all()


def _with_jobs(session: Session, *conditions: Any) -> list[EndpointAndJob]:
    joined = select(EndpointRow, JobRow).join(JobRow, col(JobRow.id) == col(EndpointRow.job_id), isouter=True)
    chosen = joined.where(*conditions).order_by(col(EndpointRow.name))
    return [(row, job) for row, job in session.exec(chosen.execution_options(populate_existing=True))]


def start(session: Session, name: str) -> None:
    """Want the endpoint to run, with fresh counts, unless it runs. Raises NotFound; NotNow while it stops."""
    row, job = get(session, name)
    if row.to_run and row.reason is None:
        return
    if job is not None and job.state not in TERMINAL:
        raise NotNow(f"The endpoint {name} still stops: start it again in a moment.")
    row.to_run, row.job_id, row.started_at = True, None, leases.clock(session)
    for column, value in FRESH.items():
        setattr(row, column, value)
    session.add(row)


def stop(session: Session, name: str, cause: str) -> JobRow | None:
    """Want the endpoint not to run and cancel its job. Return the job that still ends. Raises NotFound."""
    row, job = get(session, name)
    row.to_run = False
    session.add(row)
    if job is None or job.state in TERMINAL:
        return None
    with suppress(NotNow):  # it ended just now
        return queue.request_cancel(session, job.id, cause)
    return None


def remove(session: Session, name: str, cause: str) -> JobRow | None:
    """Stop the endpoint and forget it. Return the job that still ends. Raises NotFound."""
    job = stop(session, name, cause)
    session.delete(get(session, name)[0])
    return job


def hold_restored(session: Session) -> None:
    """Stop the endpoints of a restored backup until somebody starts them, since whoever made it chose what they do."""
    session.execute(update(EndpointRow).values(to_run=False))


def is_unsettled(session: Session, host: str) -> bool:
    """Tell whether an endpoint of that host that is to run has no live job. A round without one writes nothing."""
    return session.exec(_unsettled(host).limit(1)).first() is not None


def _running_on(host: str) -> list[ColumnElement[bool]]:
    """Match the endpoints of that host that are to run and are not given up."""
    return [col(EndpointRow.host) == host, col(EndpointRow.to_run).is_(True), col(EndpointRow.reason).is_(None)]


def _unsettled(host: str) -> Any:
    ended = or_(col(EndpointRow.job_id).is_(None), col(JobRow.state).in_(TERMINAL))
    joined = select(EndpointRow, JobRow).join(JobRow, col(JobRow.id) == col(EndpointRow.job_id), isouter=True)
    return joined.where(*_running_on(host), ended)


def settle(session: Session, host: str, artifacts: str) -> None:
    """Give each endpoint of that host that is to run a live job, or decide when it gets one, or that it gets none.

    `artifacts`: the folder that holds artifacts.
    """
    for row, job in list(session.exec(_unsettled(host).execution_options(populate_existing=True))):
        if job is not None and row.not_before is None and not _decide(session, row, job):
            continue
        if row.not_before is None or row.not_before <= leases.clock(session):
            _submit_next(session, row, artifacts)


def _decide(session: Session, row: EndpointRow, job: JobRow) -> bool:
    """Decide what follows the end of an endpoint's job. Return whether there is to be another job."""
    changes: dict[str, Any] = _sum_up(session, row, job)
    # 1. A person cancelled the job: the endpoint stops. It made room for something: another follows at once.
    if job.ending == Ending.PERSON and job.state == JobState.CANCELLED:
        _change(session, row, to_run=False)
        return False
    if job.ending == Ending.ROOM:
        return _change(session, row, not_before=leases.clock(session), **changes)
    # 2. It failed by its own error: the same again would end the same way.
    error = job.error or "Its job ended without a reason: see its log."
    if job.state == JobState.FAILED and job.ending in {None, Ending.FAILED}:
        _change(session, row, reason=error, **changes)
        return False
    # 3. It crashed: another follows after a pause, unless that happened too often.
    ended = job.finished_at or leases.clock(session)
    decision = decide_restart(row.crashes, (ended - job.started_at).total_seconds() if job.started_at else 0.0)
    changes["crashes"] = decision.crashes
    if decision.pause_s is None:
        _change(session, row, reason=f"It ended {decision.crashes} times in a row. {error}", **changes)
        return False
    changes["restarts"] += 1
    return _change(session, row, not_before=leases.clock(session) + timedelta(seconds=decision.pause_s), **changes)


def _sum_up(session: Session, row: EndpointRow, job: JobRow) -> dict[str, Any]:
    """Return the endpoint's counts with those of a job that has ended."""
    counts = read_counts(session, job.id)
    return {name: getattr(row, name) + counts[name] for name in (*COUNTS, "restarts")}


def read_spec(row: EndpointRow) -> EndpointSpec:
    """Return the specification of the endpoint's jobs. Raises Unreadable."""
    try:
        return EndpointSpec.model_validate_json(row.spec)
    except ValidationError as error:
        raise unreadable(error, f"the endpoint {row.name}") from None


def is_summed_up(row: EndpointRow) -> bool:
    """Tell whether the counts of the endpoint's latest job are among its own: its end has been decided upon."""
    return row.reason is not None or row.not_before is not None


def read_counts(session: Session, job_id: str) -> dict[str, Any]:
    """Return COUNTS and `restarts` as the job's worker reported them last; zeros before its first report."""
    event = history.latest_with(session, job_id, "loads")
    data = event.data if event is not None else {}
    return {name: data.get(name, 0) for name in (*COUNTS, "restarts")}


def _change(session: Session, row: EndpointRow, **values: Any) -> bool:
    """Change an endpoint unless another supervisor was first, or a person changed it. Return whether it changed."""
    column = col(EndpointRow.not_before)
    is_same = column.is_(None) if row.not_before is None else column == row.not_before
    outcome: Any = session.execute(
        update(EndpointRow).where(*_same_row(row), is_same).values(**values),
        execution_options={"synchronize_session": False},
    )
    if outcome.rowcount == 1:
        session.refresh(row)
        return True
    return False


def _same_row(row: EndpointRow) -> list[ColumnElement[bool]]:
    """Match the row while it is to run and has had no further job."""
    return [
        col(EndpointRow.name) == row.name,
        col(EndpointRow.generation) == row.generation,
        col(EndpointRow.to_run).is_(True),
    ]


def _submit_next(session: Session, row: EndpointRow, artifacts: str) -> None:
    """Submit the endpoint's next job and name it in the row, unless another supervisor did."""
    # 1. Take the next number.
    generation = row.generation + 1
    try:
        spec = read_spec(row)
    except Unreadable as error:
        _change(session, row, reason=str(error))
        return
    spec = spec.model_copy(update={"fresh": not row.restarts})
    job_id = "j-" + secrets.token_hex(5)
    values = {"generation": generation, "job_id": job_id, "not_before": None}
    # 2. Insert the job, which only this host may run.
    job = JobRow(
        id=job_id,
        kind=JobKind.ENDPOINT,
        state=JobState.QUEUED,
        title=f"Endpoint {row.name}",
        owner=row.owner,
        spec=spec.model_dump_json(),
        submission=f"endpoint {row.stamp} {generation}",
        claim=Claim(beside=True).text,
        terms=Terms(retries=0).text,
        pinned_host=row.host,
    )
    try:
        with session.begin_nested():
            outcome: Any = session.execute(
                update(EndpointRow).where(*_same_row(row)).values(**values),
                execution_options={"synchronize_session": False},
            )
            if outcome.rowcount == 1:
                queue.submit(session, job, artifacts=spec.artifacts(artifacts))
    except NotFound as error:  # an artifact that was deleted
        _change(session, row, reason=str(error))


def are_to_vacate(jobs: Sequence[JobRow]) -> bool:
    """Tell whether an endpoint's job is among these that nobody has asked to end."""
    return any(job.kind == JobKind.ENDPOINT and not job.cancel_requested for job in jobs)


def vacate(session: Session, jobs: Sequence[JobRow]) -> None:
    """Cancel the live jobs of endpoints, which run for ever, so that a supervisor that takes jobs gives them others."""
    for job in jobs:
        if job.state in LIVE and are_to_vacate([job]):
            with suppress(NotNow):
                queue.request_cancel(session, job.id, "the drain of its supervisor", Ending.ROOM)
