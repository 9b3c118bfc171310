"""How jobs look on screens: status as icon and word, durations, rows of the jobs table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from backend.domain.jobs import JobState
from backend.service.jobs import JobView

ICONS = {
    JobState.QUEUED: ":material/schedule:",
    JobState.STARTING: ":material/rocket_launch:",
    JobState.RUNNING: ":material/play_circle:",
    JobState.CANCELLING: ":material/hourglass_bottom:",
    JobState.SUCCEEDED: ":material/check_circle:",
    JobState.FAILED: ":material/error:",
    JobState.CANCELLED: ":material/cancel:",
    JobState.LOST: ":material/help:",
}


def status(job: JobView) -> str:
    return f"{ICONS[job.state]} {job.state}"


def seconds(value: float | None) -> str:
    """A duration a person reads: 42 s, 3 min 10 s, 2 h 5 min; a dash where unknown."""
    if value is None:
        return "–"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def elapsed(job: JobView, now: datetime | None = None) -> float | None:
    """Seconds from start to end, or to now while it runs."""
    if job.started_at is None:
        return None
    return ((job.finished_at or now or datetime.now(UTC)) - job.started_at).total_seconds()


def row(job: JobView) -> dict[str, Any]:
    """One line of the history table."""
    return {
        "Job": job.id,
        "What": job.title,
        "State": str(job.state),
        "Created (UTC)": job.created_at.strftime("%Y-%m-%d %H:%M:%S"),
        "Took": seconds(elapsed(job)),
        "Outcome": job.error or job.message or "",
    }
