"""A job's channel: all that passes between a worker and the rest of the studio. Standard library and pydantic only.

Its form is the same wherever it is, and each attempt has one of its own (`JOB/ATTEMPT/`), so that a worker that was
believed dead cannot speak for a later attempt. `spec.json` is the request, `granted.json` what the worker may use;
`events/` holds numbered segments, one JSON line per event, each written once; `result.json` is written once, last;
`alive` changes while the worker's process lives; `log.txt` is what the worker printed; `work/` is scratch, with
`output/`, what the job publishes; `resume/` is what the next attempt may continue from, and moves into that attempt's
channel. An attempt may continue from any moment: each file gets its name when it is complete, except those named
`mapped-*`, which are changed in place.

Here a channel is a folder on this machine's disk. In an object store it would be a prefix: segments and result are
objects written once, since there is neither append nor rename; the worker copies `output`, `resume` and its log there
before the result, and `Channel.output` fetches. Only `channel_copy` builds paths inside a channel besides this module.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic import Field, TypeAdapter, ValidationError

from backend import files
from backend.domain.errors import WorkError
from backend.domain.frozen import Frozen
from backend.domain.jobs.claims import Granted
from backend.domain.jobs.endings import Ending
from backend.domain.jobs.jobs import Event, JobSpec
from backend.settings import Settings

SPEC, RESULT, LOG, EVENTS, WORK, OUTPUT, RESUME = (
    "spec.json",
    "result.json",
    "log.txt",
    "events",
    "work",
    "output",
    "resume",
)
COMING = "coming"
"""Resume files of another machine, on their way here."""
ALIVE, GRANTED = "alive", "granted.json"
FLUSH_S = 0.25
PULSE_S = 2.0


class ChannelDamaged(WorkError):
    """The job's channel holds what no worker writes: the job is ended, and its files stay."""


class Result(Frozen):
    """A worker's statement of how its job ended."""

    outcome: Literal["succeeded", "failed", "cancelled"]
    error: str | None = None
    ending: Ending | None = None
    """Why it failed, where that is no fault of its own."""
    document: dict[str, Any] = Field(default_factory=dict)


def segment_name(number: int) -> str:
    return f"{number:08d}.jsonl"


def _is_bare_progress(event: Event) -> bool:
    """Return whether the event reports the progress of its phase and nothing else."""
    return event.kind == "progress" and not event.data and event.message is None


def encode(events: Iterable[Event]) -> bytes:
    return "".join(event.model_dump_json(exclude_defaults=False) + "\n" for event in events).encode()


def decode(segment: bytes) -> list[Event]:
    return [Event.model_validate_json(line) for line in segment.splitlines() if line.strip()]


class Channel:
    """The studio's end of one attempt: what supervisor, launchers and service may do. `folder` is the job's."""

    def __init__(self, folder: Path, attempt: int = 1) -> None:
        self._job, self._folder = folder, folder / str(attempt)

    @property
    def address(self) -> str:
        """Return the address by which a worker finds its end."""
        return str(self._folder)

    def open(self, spec: str, granted: Granted | None = None) -> None:
        """Begin the attempt with its specification (JSON), its worker's share of the host, and the resume files of
        earlier attempts; of those only the logs stay. Raises DiskFull, WorkError."""
        with files.disk_errors(self._folder):
            for name in (EVENTS, WORK, COMING):
                (self._folder / name).mkdir(parents=True, exist_ok=True)
            for earlier in sorted(self._attempts(), key=lambda path: int(path.name)):
                if earlier != self._folder:
                    self._take_over(earlier)
        files.write(self._folder / GRANTED, (granted or Granted()).model_dump_json(), flush=False)
        files.write(self._folder / SPEC, spec, flush=False)  # no worker reads it after a crash of the machine

    def _take_over(self, earlier: Path) -> None:
        for path in earlier.glob(f"{RESUME}*"):
            shutil.rmtree(self._folder / path.name, ignore_errors=True)
            path.rename(self._folder / path.name)
        for name in (EVENTS, WORK, COMING):
            shutil.rmtree(earlier / name, ignore_errors=True)

    def _attempts(self) -> list[Path]:
        return [path for path in self._job.glob("*") if path.name.isdigit() and path.is_dir()]

    def segments(self, after: int) -> list[tuple[int, list[Event]]]:
        """Return event segments numbered above `after`, in order, up to the first gap. Raises ChannelDamaged."""
        segments = []
        number = after + 1
        while (path := self._folder / EVENTS / segment_name(number)).exists():
            try:
                segments.append((number, decode(path.read_bytes())))
            except ValueError as error:
                raise self._damaged(path, error) from None
            number += 1
        return segments

    def result(self) -> Result | None:
        """Return the worker's result, or None while there is none. Raises ChannelDamaged."""
        path = self._folder / RESULT
        try:
            return Result.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._damaged(path, error) from None

    def _damaged(self, path: Path, error: ValueError) -> ChannelDamaged:
        first = str(error.errors()[0]["msg"]) if isinstance(error, ValidationError) else str(error)
        return ChannelDamaged(
            f"{path} is damaged ({first}), so the job was ended. Its files stay there; resume the job to run it again."
        )

    def pulse(self) -> int:
        """Return a number that changes whenever the worker's process has shown a sign of life."""
        try:
            return (self._folder / ALIVE).stat().st_mtime_ns
        except OSError:
            return 0

    @property
    def output(self) -> Path:
        """Return the folder on this machine with what the job published, to be verified and moved; it may not exist."""
        return self._folder / WORK / OUTPUT

    def clear(self) -> None:
        """Remove scratch and unpublished work."""
        shutil.rmtree(self._folder / WORK, ignore_errors=True)

    def log_sink(self) -> BinaryIO:
        """Return the log, open to append what a worker on this machine prints. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return (self._folder / LOG).open("ab")

    def spec(self) -> str:
        """Return the specification as JSON. Raises OSError."""
        return (self._folder / SPEC).read_text()

    def request(self) -> JobSpec:
        """Return the specification. Raises OSError, ChannelDamaged."""
        path = self._folder / SPEC
        try:
            spec: JobSpec = TypeAdapter(JobSpec).validate_json(path.read_bytes())
        except ValueError as error:
            raise self._damaged(path, error) from None
        return spec

    def granted(self) -> Granted:
        """Return what the worker may use. Raises OSError, ChannelDamaged."""
        path = self._folder / GRANTED
        try:
            return Granted.model_validate_json(path.read_bytes())
        except ValueError as error:
            raise self._damaged(path, error) from None

    def log(self, *, tail_bytes: int | None = None) -> str:
        """Return what the workers of all attempts printed, or its last `tail_bytes`; empty while there is nothing."""
        text = b""
        for attempt in sorted(self._attempts(), key=lambda path: int(path.name), reverse=True):
            wanted_bytes = None if tail_bytes is None else tail_bytes - len(text)
            text = _tail(attempt / LOG, wanted_bytes) + text
        return text.decode(errors="replace")

    def side_log(self, name: str, *, tail_bytes: int | None = None) -> str:
        """Return what a program that the attempt started printed, or its last `tail_bytes`; empty if there is none."""
        return _tail(self._folder / f"{name}.log", tail_bytes).decode(errors="replace")

    def resume_bytes(self) -> int:
        """Return the bytes of the resume files. Spilled hidden states count by what they take on the disk."""
        size = 0
        for path in (path for folder in self._resume_folders() for path in folder.rglob("*")):
            try:
                size += path.stat().st_blocks * 512 if path.is_file() else 0
            except FileNotFoundError:  # the job goes on, or somebody else dropped it
                continue
        return size

    def drop_resume(self) -> None:
        """Remove the resume files, so that the next attempt begins anew."""
        for folder in self._resume_folders():
            shutil.rmtree(folder, ignore_errors=True)

    def _resume_folders(self) -> list[Path]:
        return [path for path in self._job.glob(f"*/{RESUME}*") if path.is_dir()]


def _tail(path: Path, most: int | None) -> bytes:
    """Return the last bytes of the file, all if `most` is None; empty if there is no file."""
    if most == 0 or not path.exists():
        return b""
    with path.open("rb") as source:
        if most is not None:
            source.seek(max(0, path.stat().st_size - most))
        return source.read()


def attempt_channel(settings: Settings, job_id: str, attempt: int = 1, home: str | None = None) -> Channel:
    """Return the channel of a job's attempt, in this home if no other is given."""
    return Channel((Path(home) / "jobs" if home else settings.jobs) / job_id, attempt)


class JobChannel:
    """The worker's end, the only way in which a worker reports. Event segments are written once each. Any thread may
    emit."""

    def __init__(self, address: Path) -> None:
        self._folder = address
        self._segment = max(
            (int(path.stem) for path in (address / EVENTS).glob("*.jsonl") if path.stem.isdigit()), default=0
        )
        self._waiting: list[Event] = []
        self._flushed = 0.0
        self._lock = threading.RLock()

    @property
    def job(self) -> str:
        """The job's id."""
        return self._folder.parent.name

    def live(self) -> None:
        """Show that this process lives, from now on, in a thread of its own."""

        def beat() -> None:
            while True:
                self.beat()
                time.sleep(PULSE_S)

        threading.Thread(target=beat, daemon=True, name="alive").start()

    def beat(self) -> None:
        """Show once that this process lives."""
        with suppress(WorkError):  # a full disk is for the job itself to meet
            files.write(self._folder / ALIVE, "", flush=False)

    def spec(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self._folder / SPEC).read_text())
        return document

    def granted(self) -> Granted:
        """Return the cores and GPUs of this machine that the worker may use."""
        path = self._folder / GRANTED
        return Granted.model_validate_json(path.read_bytes()) if path.is_file() else Granted()

    @property
    def work(self) -> Path:
        """Scratch space on the worker's machine, removed when the job ends."""
        return self._folder / WORK

    @property
    def output(self) -> Path:
        """Return the folder for what the job publishes; nothing counts until the supervisor has verified it."""
        return self.work / OUTPUT

    def resume(self, name: str = "") -> Path:
        """Return a folder beside the scratch space that the next attempt finds as this one left it.

        There is one for each name.
        """
        return self._folder / "-".join([RESUME, name] if name else [RESUME])

    def side_log(self, name: str) -> Path:
        """Return the log file of a program that the job starts."""
        return self._folder / f"{name}.log"

    def emit(self, event: Event, *, urgent: bool = True) -> None:
        """Queue an event. It is written at once if urgent, else at most four times a second, with the events before it.

        Of waiting events of bare progress only the last is written: a small model's layers would fill the database.
        """
        with self._lock:
            if (
                self._waiting
                and _is_bare_progress(self._waiting[-1])
                and _is_bare_progress(event)
                and self._waiting[-1].phase == event.phase
            ):
                self._waiting.pop()
            self._waiting.append(event)
            if urgent or time.monotonic() - self._flushed > FLUSH_S:
                self.flush()

    def flush(self) -> None:
        """Write the waiting events as the next segment."""
        with self._lock:
            if not self._waiting:
                return
            number = self._segment + 1  # taken once it is written: a number left out would hide all that come after it
            files.write(self._folder / EVENTS / segment_name(number), encode(self._waiting))
            self._segment = number
            self._waiting.clear()
            self._flushed = time.monotonic()

    def result(self, document: dict[str, Any]) -> None:
        """Write how the job ended, after all events."""
        self.flush()
        files.write(self._folder / RESULT, json.dumps(document))
