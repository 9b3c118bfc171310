"""How a worker that left no result ended, in a sentence."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from backend import files
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.jobs import UNSAID

FULL_BYTES = 1 << 20
"""A disk with less free is full: a result needs a few kB."""
STOPPED = "The worker was stopped from outside, as at the end of a session"


def removed(attempt: str) -> str | None:
    """What to say where somebody removed the attempt's folder while its worker ran; None where it is there."""
    if Path(attempt).is_dir():
        return None
    return f"The job's folder {attempt} was removed while it ran, and its log with it: resume the job, and leave its folder alone"


def exit_sentence(code: int, folder: Path, attempt: str | None = None) -> tuple[Ending, str]:
    """Of a worker that left no result in `attempt`, which lies in `folder`, and how that ending is called. `code`:
    negative for a signal."""
    if attempt is not None and (gone := removed(attempt)) is not None:
        return Ending.DAMAGED, gone
    if code == UNSAID or shutil.disk_usage(folder).free < FULL_BYTES:
        return Ending.DISK, str(files.disk_full(folder))
    if code == -9:
        killed = "The worker was killed (signal 9), as the system does when memory runs out: see the log, then resume the job"
        return Ending.CRASHED, killed
    if code == -signal.SIGTERM:  # it had begun so little that it could not say so itself
        return Ending.STOPPED, STOPPED
    how = f"on signal {-code}" if code < 0 else f"with exit code {code}"
    return Ending.CRASHED, f"The worker ended {how} without a result: see the log, then resume the job"
