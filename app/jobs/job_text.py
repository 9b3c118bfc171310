"""How jobs look on screens: status as icon and word, what can be done to them, phases with times, the lines of a
log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from app.formatting import duration_range, local_time, message, plain, seconds, size
from backend.domain.jobs.eta import TimeLeft
from backend.domain.jobs.jobs import RESUMABLE, TERMINAL, Event, JobKind, JobState
from backend.domain.jobs.queueing import WaitReason
from backend.domain.jobs.terms import Priority
from backend.service.jobs.jobs import JobView

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
ENDINGS = [str(state) for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.LOST)]
MAX_LOG_LINES = 400
WORTH_A_GUESS = 0.1


def status(job: JobView) -> str:
    if job.aside:
        return ":material/front_hand: put aside"
    return f"{ICONS[job.state]} {'making room' if job.making_room else job.state}"


def elapsed(job: JobView) -> float | None:
    """Seconds from start to end, or to now while it runs."""
    if job.started_at is None:
        return None
    return ((job.finished_at or datetime.now(UTC)) - job.started_at).total_seconds()


def verbs(job: JobView) -> tuple[str, ...]:
    """What can be done to it now, beside opening it; cancelling is asked for apart."""
    if job.state is JobState.QUEUED:
        return ("Move to front",)
    if job.aside:
        return ("Release", "Clone")
    if job.state in RESUMABLE:
        return ("Resume", "Retry", "Clone")
    return ("Clone",) if job.state is JobState.SUCCEEDED else ()


def main_verb(job: JobView) -> str | None:
    """What is done next to a job that did not succeed: go on from where it was, which is what its error asks for
    too."""
    if job.aside:
        return "Release"
    return "Resume" if job.state in RESUMABLE else None


def can_cancel(job: JobView) -> bool:
    return job.state not in TERMINAL and job.state is not JobState.CANCELLING and not job.cancel_requested


def headline(job: JobView) -> str:
    priority = "" if job.terms.priority == Priority.NORMAL or job.ended else f" · {job.terms.priority} priority"
    return f"**{plain(job.title)}** · {status(job)}{priority}"


def progress_text(job: JobView, place: int | None = None, *, left: bool = True) -> str:
    """The bar's own words: how far, since when, and with `left` how much longer. `place` is the place in the queue."""
    if job.state is JobState.QUEUED:
        return f"Waiting, number {place} in the queue" if place else "Waiting in the queue"
    guess = remaining_guess(job) if left else None
    more = f" · about {seconds(guess)} left" if guess is not None else ""
    text = plain((job.message or "Starting").rstrip("."))
    return f"{text} · {job.progress or 0:.0%} · {seconds(elapsed(job))}{more}"


def remaining_guess(job: JobView) -> float | None:
    """The worker's own guess of the seconds left, less what has passed since; None before a tenth, where it is far
    off."""
    if job.eta_s is None or job.event_at is None or (job.progress or 0.0) < WORTH_A_GUESS:
        return None
    left = job.eta_s - (datetime.now(UTC) - job.event_at).total_seconds()
    return left if left > 0 else None


def time_left(job: JobView, estimate: TimeLeft | None) -> tuple[str, str]:
    """The range of what is left and what it goes by; without one the worker's own guess, else that it is unknown."""
    if estimate is not None:
        return duration_range(estimate.low, estimate.high), estimate.basis
    if (guess := remaining_guess(job)) is not None:
        return f"about {seconds(guess)}", "if the rate stays the same"
    return "unknown", "no estimate yet: no recent rate and no earlier job like it"


def kind_name(kind: str) -> str:
    """As a person reads it."""
    return "SageMaker" if kind == JobKind.MANAGED else kind


def summary(job: JobView) -> str:
    """One line under an ended job: what it was, when, how long, and how it went wrong where it did."""
    parts = [f"`{job.id}`", kind_name(job.kind), local_time(job.created_at), f"took {seconds(elapsed(job))}"]
    if job.kind == JobKind.MANAGED and job.result.get("usd") is not None:
        parts.append(f"at AWS, about {job.result['usd']:.2f} USD")
    if job.error:
        parts.append(plain(job.error))
    return " · ".join(parts)


def waiting_reason(reason: WaitReason | None, titles: Mapping[str, str]) -> str:
    """The reason in Markdown; jobs by their titles, as far as they are known."""
    sentence = reason.sentence if reason else "Next in queue."
    words = message(sentence)
    for job in reason.on if reason else ():
        if title := titles.get(job):
            words = words.replace(plain(job), f"“{plain(title)}”", 1)
    return words


def queue_positions(active: Sequence[JobView]) -> dict[str, int]:
    """Job id -> place in the queue, from 1."""
    queued = [job.id for job in active if job.state is JobState.QUEUED]
    return {job_id: number for number, job_id in enumerate(queued, 1)}


def rate_text(event: Event | None) -> str | None:
    """`3.2 layers/s`, and `12 of 56 layers`, as far as the event says."""
    if event is None or event.total is None or event.done is None:
        return None
    unit = event.unit or "steps"
    if unit == "bytes":
        far = f"{size(event.done)} of {size(event.total)}"
        return f"{far}, {size(event.rate)}/s" if event.rate else far
    far = f"{event.done:g} of {event.total:g} {unit}"
    return f"{far}, {event.rate:.3g} {unit}/s" if event.rate else far


def phase_rows(job: JobView, events: Sequence[Event]) -> list[dict[str, Any]]:
    """The phases of the latest attempt, each until the next one began; the last until the end, or now."""
    since = job.started_at
    begun = [event for event in events if event.kind == "phase" and (since is None or event.at >= since)]
    ends = [event.at for event in begun[1:]] + [job.finished_at or datetime.now(UTC)]
    return [
        {
            "Phase": phase.message or phase.phase or "",
            "State": "running" if number == len(begun) and not job.ended else "ended",
            "Began": local_time(phase.at),
            "Took": seconds(max(0.0, (end - phase.at).total_seconds())),
        }
        for number, (phase, end) in enumerate(zip(begun, ends, strict=False), 1)
    ]


def warnings(events: Sequence[Event]) -> list[str]:
    """What the job warned of, each once."""
    return list(dict.fromkeys(event.message for event in events if event.kind == "warning" and event.message))


def log_lines(text: str, words: str) -> tuple[str, int]:
    """The last lines that hold `words`, in any case, and how many lines do."""
    needle = words.casefold()
    matches = [line for line in text.splitlines() if needle in line.casefold()]
    return "\n".join(matches[-MAX_LOG_LINES:]), len(matches)
