"""Text about jobs: status as icon and word, possible actions, phases with times, lines of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from app.formatting import cell, duration_range, local_time, message, plain, seconds, size
from backend.domain.jobs.eta import TimeLeft
from backend.domain.jobs.jobs import RESUMABLE, TERMINAL, Event, JobKind, JobState
from backend.domain.jobs.kinds import KINDS
from backend.domain.jobs.queueing import WaitReason
from backend.domain.jobs.terms import Priority
from backend.present.source_names import evaluation_name
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
    return f"{':material/front_hand:' if job.aside else ICONS[job.state]} {state_words(job)}"


def state_words(job: JobView) -> str:
    """Return the state as a person reads it."""
    if job.aside:
        return "put aside"
    return "making room" if job.making_room else str(job.state)


def short_title(job: JobView) -> str:
    """Return the title of a job's page: of an evaluation of several variants not all of their names."""
    name = evaluation_name(job.title)
    return job.title if name == job.title else f"Evaluate {name}"


def tab_words(job: JobView) -> str:
    """Return the name of a browser's tab with the job: its progress while it runs, else its state, and its title."""
    if job.state is JobState.RUNNING:
        return f"{job.progress or 0:.0%} {job.title}"
    return f"{state_words(job).capitalize()}: {job.title}"


def elapsed(job: JobView) -> float | None:
    """Return seconds from start to end, or to now while the job runs."""
    if job.started_at is None:
        return None
    return ((job.finished_at or datetime.now(UTC)) - job.started_at).total_seconds()


def verbs(job: JobView) -> tuple[str, ...]:
    """Return the actions that are possible now, except opening and cancelling."""
    if job.state is JobState.QUEUED:
        return ("Move to front",)
    if job.kind == JobKind.ENDPOINT:  # supervisors give its endpoint another job
        return ()
    if job.aside:
        return ("Release", "Clone")
    if job.state in RESUMABLE:
        return ("Resume", "Retry", "Clone")
    return ("Clone",) if job.state is JobState.SUCCEEDED else ()


def main_verb(job: JobView) -> str | None:
    """Return the next action on a job that did not succeed, which is also what its error suggests."""
    if job.kind == JobKind.ENDPOINT:
        return None
    if job.aside:
        return "Release"
    return "Resume" if job.state in RESUMABLE else None


def can_cancel(job: JobView) -> bool:
    return job.state not in TERMINAL and job.state is not JobState.CANCELLING and not job.cancel_requested


def headline(job: JobView) -> str:
    priority = "" if job.terms.priority == Priority.NORMAL or job.ended else f" · {job.terms.priority} priority"
    return f"**{plain(job.title)}** · {status(job)}{priority}"


def progress_text(job: JobView, place: int | None = None, *, left: bool = True) -> str:
    """Return the text of the progress bar. `left`: with the remaining time. `place`: position in the queue."""
    if job.state is JobState.QUEUED:
        return f"Waiting, number {place} in the queue" if place else "Waiting in the queue"
    guess = remaining_guess(job) if left else None
    more = f" · {duration_range(guess, guess)} left" if guess is not None else ""
    text = plain((job.message or "Starting").rstrip("."))
    return f"{text} · {job.progress or 0:.0%} · {seconds(elapsed(job))}{more}"


def remaining_guess(job: JobView) -> float | None:
    """Return the worker's own guess of the seconds left; None before a tenth is done, when it is far off."""
    if job.eta_s is None or job.event_at is None or (job.progress or 0.0) < WORTH_A_GUESS:
        return None
    left = job.eta_s - (datetime.now(UTC) - job.event_at).total_seconds()
    return left if left > 0 else None


def time_left(job: JobView, estimate: TimeLeft | None) -> tuple[str, str]:
    """Return the remaining time and its basis: the range, else the worker's own guess, else unknown."""
    if estimate is not None:
        return duration_range(estimate.low, estimate.high), estimate.basis
    if (guess := remaining_guess(job)) is not None:
        return duration_range(guess, guess), "if the rate stays the same"
    return "unknown", "no estimate yet: no recent rate and no earlier job like it"


def kind_name(kind: str) -> str:
    """Return a job kind as a person reads it."""
    return "SageMaker" if KINDS[kind].at_aws else kind


def summary(job: JobView) -> str:
    """Return one line about an ended job: kind, times, and the error if it failed."""
    parts = [f"`{job.id}`", kind_name(job.kind), local_time(job.created_at), f"took {seconds(elapsed(job))}"]
    if job.result.get("usd") is not None:
        parts.append(f"at AWS, about {job.result['usd']:.2f} USD")
    if job.error:
        parts.append(message(job.error))
    return " · ".join(parts)


def waiting_reason(reason: WaitReason | None, titles: Mapping[str, str]) -> str:
    """Return why a job waits, in Markdown; known jobs are named by their titles."""
    sentence = reason.sentence if reason else "Next in queue."
    words = message(sentence)
    for job in reason.on if reason else ():
        if title := titles.get(job):
            words = words.replace(plain(job), f"“{plain(title)}”", 1)
    return words


def queue_positions(active: Sequence[JobView]) -> dict[str, int]:
    """Return job id -> position in the queue, from 1."""
    queued = [job.id for job in active if job.state is JobState.QUEUED]
    return {job_id: number for number, job_id in enumerate(queued, 1)}


def rate_text(event: Event | None) -> str | None:
    """Return `12 of 56 layers, 3.2 layers/s`, as far as the event says."""
    if event is None or event.total is None or event.done is None:
        return None
    unit = event.unit or "steps"
    if unit == "bytes":
        far = f"{size(event.done)} of {size(event.total)}"
        return f"{far}, {size(event.rate)}/s" if event.rate else far
    far = f"{event.done:g} of {event.total:g} {unit}"
    return f"{far}, {event.rate:.3g} {unit}/s" if event.rate else far


def phase_rows(job: JobView, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return the phases of the latest attempt; the last one lasts until the end, or now."""
    since = job.started_at
    begun = [event for event in events if event.kind == "phase" and (since is None or event.at >= since)]
    ends = [event.at for event in begun[1:]] + [job.finished_at or datetime.now(UTC)]
    return [
        {
            "Phase": cell(phase.message or phase.phase or ""),
            "State": "running" if number == len(begun) and not job.ended else "ended",
            "Began": local_time(phase.at),
            "Took": seconds(max(0.0, (end - phase.at).total_seconds())),
        }
        for number, (phase, end) in enumerate(zip(begun, ends, strict=False), 1)
    ]


def warnings(events: Sequence[Event]) -> list[str]:
    """Return each warning of the job once."""
    return list(dict.fromkeys(event.message for event in events if event.kind == "warning" and event.message))


def log_lines(text: str, words: str) -> tuple[str, int]:
    """Return the last lines that contain `words`, in any case, and how many lines do."""
    needle = words.casefold()
    matches = [line for line in text.splitlines() if needle in line.casefold()]
    return "\n".join(matches[-MAX_LOG_LINES:]), len(matches)
