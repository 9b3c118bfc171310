"""The worker's top level: reads the specification, runs the job, writes one result whatever happens.

One of the two places where a broad `except` is right: a failure nobody foresaw must still end in a sentence and a
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
from backend.domain.jobs.jobs import RESULT_UNWRITTEN, Event, JobKind, JobSpec
from backend.domain.jobs.kinds import KINDS
from backend.domain.validation import unreadable
from backend.files import disk_full, stamp
from backend.worker import stop_watchdog
from backend.worker.resources import PeakMemory

SPEC: TypeAdapter[JobSpec] = TypeAdapter(JobSpec)
"""Made once, as this module is imported."""


def main(folder: str) -> int:
    """Exit 0 succeeded, 1 failed, 130 cancelled, as the result document says; UNSAID where it could not be written."""
    channel = JobChannel(Path(folder))
    _keep_to(channel.granted())
    channel.live()
    seen = stop_watchdog.start_watchdog()
    signal.signal(signal.SIGTERM, lambda *_: _cancelled(seen))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with PeakMemory(lambda rss, cores: _used(channel, rss, cores)) as memory:
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


def _keep_to(granted: Granted) -> None:
    """Before any library is imported: what starts later, and what counts cores, goes by this."""
    if granted.cores is not None:
        own = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {own[index] for index in granted.cores if index < len(own)} or set(own))
    if granted.gpus is not None:
        own_gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        listed = [own_gpus[index] if index < len(own_gpus) and own_gpus[0] else str(index) for index in granted.gpus]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(listed)


def _cancelled(seen: Callable[[], None]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # first: `seen` must not be entered again
    seen()
    raise JobCancelled


def _used(channel: JobChannel, rss_bytes: int, cores: float) -> None:
    """A point of the resource chart. `cpu_percent`: 100 is one core kept busy."""
    channel.emit(
        Event(kind="resource", data={"rss_bytes": rss_bytes, "cpu_percent": round(100 * cores, 1)}), urgent=False
    )


def _run(channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    try:
        spec = SPEC.validate_python(channel.spec())
    except ValidationError as error:
        raise unreadable(error, "the job") from None
    began = "The worker has started."
    print(began, flush=True)
    channel.emit(Event(kind="state", message=began))
    for folder in _changed(channel):
        message = f"The files in {folder} changed after this job was submitted: it works on them as they are now."
        channel.emit(Event(kind="warning", message=message))
    _keep_to_whom(spec)
    worker = KINDS[JobKind(spec.kind)].worker
    if worker is None:
        raise WorkError("AWS runs this job, no worker: run it with a supervisor of this version.")
    module = importlib.import_module(f"backend.worker.kinds.{worker}")
    document: dict[str, Any] = module.run(spec, channel, memory)
    return document


def _keep_to_whom(spec: JobSpec) -> None:
    """Who reaches the studio says whoever submits: a supervisor outlives the studio that started it, and serves others
    too."""
    if spec.kind in {"evaluate", "import"} and spec.shared is not None:
        os.environ["WHETSTONE_SHARED"] = str(int(spec.shared))


def _changed(channel: JobChannel) -> list[str]:
    """The model folders whose files are not those that the job was submitted with."""
    return [folder for folder, seen in channel.spec().get("seen", {}).items() if stamp(Path(folder)) != seen]


def _fail(channel: JobChannel, sentence: str, *, traced: bool = False, ending: Ending | None = None) -> int:
    """What a library says of a folder that somebody deleted tells nobody what happened."""
    if traced:
        with suppress(OSError):
            traceback.print_exc()
    gone = next((folder for folder in _changed(channel) if not Path(folder).is_dir()), None)
    if gone is not None:
        sentence = f"The model's folder {gone} is not there any more: put it back, then resume the job."
    return _end(channel, "failed", sentence, ending)


def _end(channel: JobChannel, outcome: str, error: str, ending: Ending | None = None) -> int:
    """A failed or cancelled job leaves no scratch behind; the disk may be full, so this must not need space of its
    own."""
    shutil.rmtree(channel.work, ignore_errors=True)
    try:
        print(error, file=sys.stderr, flush=True)
        channel.emit(Event(kind="error", message=error))
        channel.result({"outcome": outcome, "error": error, **({"ending": ending} if ending else {})})
    except (OSError, WorkError):
        return RESULT_UNWRITTEN
    return 130 if outcome == "cancelled" else 1


if __name__ == "__main__":
    ended = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)  # all is written: whoever waits need not wait for large libraries to be taken down
