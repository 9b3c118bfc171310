"""The worker's top level: reads the specification, runs the job, and writes one result whatever happens.

One of the two places where a broad `except` is right: an unforeseen failure must still end with a sentence and a
result.
"""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from backend.channel import JobChannel
from backend.domain.errors import DiskFull, JobCancelled, WhetstoneError, WorkError
from backend.domain.jobs.claims import Granted
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.jobs import RESULT_UNWRITTEN, Event, JobSpec
from backend.domain.jobs.kinds import KINDS
from backend.domain.validation import unreadable
from backend.files import disk_full, stamp
from backend.worker import stop_watchdog
from backend.worker.resources import PeakMemory

SPEC: TypeAdapter[JobSpec] = TypeAdapter(JobSpec)
"""Made once, as this module is imported."""


def main(folder: str) -> int:
    """Run the job; return 0 for success, 1 for failure, 130 for cancelled, RESULT_UNWRITTEN if the disk took none."""
    # 1. Reserve what was granted, before any library is imported, and say that the worker lives.
    channel = JobChannel(Path(folder))
    _limit_to(channel.granted())
    channel.live()

    # 2. Turn SIGTERM into JobCancelled; the watchdog ends a worker that is too busy to notice.
    acknowledge = stop_watchdog.start_watchdog()
    signal.signal(signal.SIGTERM, lambda *_: _cancel(acknowledge))
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # 3. Run the job, and turn every exception into a result.
    try:
        with PeakMemory(lambda rss, cores: _report_usage(channel, rss, cores)) as memory:
            document = _run(channel, memory)
        channel.result({"outcome": "succeeded", "document": document})
        return 0
    except JobCancelled as error:
        return _end(channel, "cancelled", str(error))
    except WhetstoneError as error:
        return _fail(channel, str(error), ending=Ending.DISK if isinstance(error, DiskFull) else None)
    except OSError as error:
        full = error.errno == errno.ENOSPC
        sentence = str(disk_full(channel.work)) if full else f"{error}."
        return _fail(channel, sentence, traced=True, ending=Ending.DISK if full else None)
    except Exception as error:  # noqa: BLE001
        sentence = f"An error nobody foresaw ({type(error).__name__}: {error}); the job's log has the rest."
        return _fail(channel, sentence, traced=True)


def _limit_to(granted: Granted) -> None:
    """Limit this process to the granted cores and GPUs; what it starts inherits that, and what counts cores sees it."""
    if granted.cores is not None:
        own = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {own[index] for index in granted.cores if index < len(own)} or set(own))
    if granted.gpus is not None:
        own_gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        listed = [own_gpus[index] if index < len(own_gpus) and own_gpus[0] else str(index) for index in granted.gpus]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(listed)


def _cancel(acknowledge: Callable[[], None]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # first: a second signal must not interrupt this
    acknowledge()
    raise JobCancelled


def _report_usage(channel: JobChannel, rss_bytes: int, cores: float) -> None:
    """Report a point of the resource chart; a `cpu_percent` of 100 is one busy core."""
    channel.emit(
        Event(kind="resource", data={"rss_bytes": rss_bytes, "cpu_percent": round(100 * cores, 1)}), urgent=False
    )


def _run(channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Run the module of the job's kind and return the document of its result."""
    # 1. Read what was requested.
    try:
        spec = SPEC.validate_python(channel.spec())
    except ValidationError as error:
        raise unreadable(error, "the job") from None

    # 2. Say that the worker runs, and what has changed since the job was submitted.
    message = "The worker has started."
    print(message, flush=True)
    channel.emit(Event(kind="state", message=message))
    for folder in _changed_folders(channel):
        message = f"The files in {folder} changed after this job was submitted: it works on them as they are now."
        channel.emit(Event(kind="warning", message=message))

    # 3. Run the module of the job's kind.
    _apply_sharing(spec)
    worker = KINDS[spec.kind].worker
    if worker is None:
        raise WorkError("AWS runs this job, no worker: run it with a supervisor of this version.")
    module = importlib.import_module(f"backend.worker.kinds.{worker}")
    document: dict[str, Any] = module.run(spec, channel, memory)
    return document


def _apply_sharing(spec: JobSpec) -> None:
    """Apply what the submitter said about who reaches the studio; the supervisor may have been started by another."""
    shared = getattr(spec, "shared", None)
    if shared is not None:
        os.environ["WHETSTONE_SHARED"] = str(int(shared))


def _changed_folders(channel: JobChannel) -> list[str]:
    """Return the model folders whose files have changed since the job was submitted."""
    stamps = channel.spec().get("seen", {})
    return [folder for folder, submitted in stamps.items() if stamp(Path(folder)) != submitted]


def _fail(channel: JobChannel, sentence: str, *, traced: bool = False, ending: Ending | None = None) -> int:
    """Write a failed result; if a model folder was deleted, say so instead of the library's own sentence."""
    if traced:
        with suppress(OSError):
            traceback.print_exc()
    deleted = next((folder for folder in _changed_folders(channel) if not Path(folder).is_dir()), None)
    if deleted is not None:
        sentence = f"The model's folder {deleted} does not exist any more: put it back, then resume the job."
    return _end(channel, "failed", sentence, ending)


def _end(channel: JobChannel, outcome: str, error: str, ending: Ending | None = None) -> int:
    """Remove the scratch folder, which needs no disk space, then write the result; return the exit code."""
    shutil.rmtree(channel.work, ignore_errors=True)
    try:
        print(error, file=sys.stderr, flush=True)
        channel.emit(Event(kind="error", message=error))
        channel.result({"outcome": outcome, "error": error, **({"ending": ending} if ending else {})})
    except (OSError, WorkError):
        return RESULT_UNWRITTEN
    return 130 if outcome == "cancelled" else 1


if __name__ == "__main__":
    exit_code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # everything is written; unloading large libraries would only take time
