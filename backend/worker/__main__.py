"""The worker's top level: reads the specification, runs the job, writes one result whatever happens.

One of the two places where a broad `except` is right: a failure nobody foresaw must still end in a sentence and a result.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from backend.channel import JobChannel
from backend.domain.errors import DiskFull, JobCancelled, WhetstoneError
from backend.domain.jobs.jobs import Event, JobSpec
from backend.worker import stopping
from backend.worker.resources import PeakMemory


def main(folder: str) -> int:
    """Exit 0 succeeded, 1 failed, 130 cancelled; the result document says the same."""
    channel = JobChannel(Path(folder))
    seen = stopping.watch()
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
        return _end(channel, "failed", str(error))
    except OSError as error:
        traceback.print_exc()
        return _end(channel, "failed", str(DiskFull()) if error.errno == errno.ENOSPC else f"{error}.")
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        return _end(channel, "failed", f"An error nobody foresaw ({type(error).__name__}: {error}); the job's log has the rest.")


def _cancelled(seen: Callable[[], None]) -> None:
    seen()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise JobCancelled


def _used(channel: JobChannel, rss_bytes: int, cores: float) -> None:
    """A point of the resource chart. `cpu_percent`: 100 is one core kept busy."""
    channel.emit(Event(kind="resource", data={"rss_bytes": rss_bytes, "cpu_percent": round(100 * cores, 1)}), urgent=False)


def _run(channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    spec: JobSpec = TypeAdapter(JobSpec).validate_python(channel.spec())
    began = "The worker has started."
    print(began, flush=True)
    channel.emit(Event(kind="state", message=began))
    match spec.kind:
        case "optimize":
            from backend.worker.kinds import optimize

            return optimize.run(spec, channel, memory)
        case "evaluate":
            from backend.worker.kinds import evaluate

            return evaluate.run(spec, channel, memory)
        case "install":
            from backend.worker.kinds import install

            return install.run(spec, channel)
        case "serve":
            from backend.worker.kinds import serve

            return serve.run(spec, channel, memory)
        case "import":
            from backend.worker.kinds import import_

            return import_.run(spec, channel)


def _end(channel: JobChannel, outcome: str, error: str) -> int:
    """A failed or cancelled job leaves no scratch behind; the disk may be full, so this must not need space of its own."""
    shutil.rmtree(channel.work, ignore_errors=True)
    print(error, file=sys.stderr, flush=True)
    channel.emit(Event(kind="error", message=error))
    channel.result({"outcome": outcome, "error": error})
    return 130 if outcome == "cancelled" else 1


if __name__ == "__main__":
    ended = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)  # all is written: whoever waits need not wait for large libraries to be taken down
