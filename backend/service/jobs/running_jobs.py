"""Live jobs with host, home, devices, lease, and the age of their supervisor's heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import Handle, JobState
from backend.service.workspace import Workspace
from backend.store import job_statistics, leases
from backend.store.tables import JobRow

UNSUCCESSFUL = (JobState.FAILED, JobState.LOST, JobState.CANCELLED)


class RunningJob(Frozen):
    """A live job. `place` is the launcher's name for it. `lease_s` is the time until another supervisor may give it up,
    negative if one already may. `heard_s` is the age of its supervisor's heartbeat, None if that stopped in order or is
    over a day old."""

    id: str
    title: str
    kind: str
    owner: str
    state: JobState
    attempt: int
    host: str
    home: str
    devices: tuple[str, ...]
    place: str | None
    since: datetime | None
    lease_s: float | None
    heard_s: float | None

    @property
    def silent(self) -> bool:
        """Tell whether its supervisor has been silent for too long."""
        return self.heard_s is None or self.heard_s > leases.STALE_SECONDS


def list_running(workspace: Workspace, *, owner: str | None = None, words: str = "") -> list[RunningJob]:
    """Return live jobs, longest-running first. All `words` must occur in title, id, host or home, in any case."""
    with workspace.store.read() as session:
        now, rows, devices = (
            leases.clock(session),
            job_statistics.list_live(session),
            job_statistics.list_devices(session),
        )
        heard = {beat.id: beat.age_s for beat in job_statistics.list_heartbeats(session)}
    # Keep the jobs of the owner in which all words occur.
    running = [_running_job(row, devices.get(row.id, ()), now, heard.get(row.supervisor or "")) for row in rows]
    search_words = words.casefold().split()
    return [
        job
        for job in running
        if owner in {None, job.owner} and all(word in _searchable_text(job) for word in search_words)
    ]


def _searchable_text(each: RunningJob) -> str:
    return " ".join((each.title, each.id, each.host, each.home)).casefold()


def _running_job(row: JobRow, devices: Sequence[str], now: datetime, heard_s: float | None) -> RunningJob:
    place = Handle.model_validate_json(row.handle).place if row.handle else None
    lease_s = (row.lease_until - now).total_seconds() if row.lease_until else None
    return RunningJob(
        id=row.id,
        title=row.title,
        kind=row.kind,
        owner=row.owner,
        state=JobState(row.state),
        attempt=row.attempt,
        host=row.host or "",
        home=row.home or "",
        devices=tuple(devices),
        place=place,
        since=row.started_at,
        lease_s=lease_s,
        heard_s=heard_s,
    )
