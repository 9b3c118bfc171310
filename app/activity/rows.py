"""Activity in rows: what runs where, what ended badly, who changed what."""

from __future__ import annotations

from typing import Any

from app.jobs.rows import status
from app.words import plain, seconds, short, when
from backend.service.jobs.jobs import JobView
from backend.service.jobs.running_jobs import Running
from backend.service.studio.audit import Record

LONGEST = 240


def place(job: Running) -> str:
    """`host, accelerator, process 71` and its home."""
    parts = [
        f"**{plain(job.host or 'no host yet')}**",
        *map(plain, job.devices),
        *([plain(job.place)] if job.place else []),
    ]
    return " · ".join([*parts, plain(job.home)])


def times(job: Running) -> str:
    """Whose it is, since when, which attempt, and how sure its place is."""
    lease = "no lease" if job.lease_s is None else f"lease {seconds(job.lease_s)}"
    late = "lease run out" if job.lease_s is not None and job.lease_s < 0 else lease
    heard = "supervisor not heard" if job.heard_s is None else f"supervisor heard {seconds(job.heard_s)} ago"
    whose = (f"`{job.id}`", job.kind, f"for {plain(job.owner)}", f"attempt {job.attempt}")
    return " · ".join([*whose, f"since {when(job.since)}", late, heard])


def ended(job: JobView) -> dict[str, Any]:
    return {
        "Job": job.title,
        "Ended": status(job).partition(" ")[2],
        "Why": short(job.error or (f"by {job.cause}" if job.cause else ""), LONGEST),
        "Owner": job.owner,
        "At": when(job.finished_at or job.created_at),
        "Id": job.id,
    }


def change(record: Record) -> dict[str, Any]:
    return {
        "Who": record.who,
        "Did": record.action,
        "To": f"{record.kind} {record.target}",
        "At": when(record.at),
        "From": record.origin,
        "Detail": short(record.detail or "", LONGEST),
    }
