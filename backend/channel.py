"""A job's channel: all that passes between a worker and the rest of the studio. Standard library and pydantic only.

Its form is the same wherever it lies. `spec.json` is what was asked; `events/` holds numbered segments, one JSON line an event,
each put once; `result.json` is put once, last; `log.txt` is what the worker printed; `work/` is scratch, in it `output/`, what
the job publishes; `resume/` is what the next attempt may go on from. Here that is a folder on this machine's disk. In an object
store it is a prefix: segments and result are objects put once, since there is neither append nor rename; the worker copies
`output`, `resume` and its log there before the result, and `Channel.output` fetches. Nobody else builds a path inside a channel.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from backend import files
from backend.domain.jobs.jobs import Event
from backend.settings import Settings

SPEC, RESULT, LOG, EVENTS, WORK, OUTPUT, RESUME = "spec.json", "result.json", "log.txt", "events", "work", "output", "resume"
FLUSH_S = 0.25


def segment_name(number: int) -> str:
    return f"{number:08d}.jsonl"


def encode(events: Iterable[Event]) -> bytes:
    return "".join(event.model_dump_json(exclude_defaults=False) + "\n" for event in events).encode()


def decode(segment: bytes) -> list[Event]:
    return [Event.model_validate_json(line) for line in segment.splitlines() if line.strip()]


class Channel:
    """The studio's end: what supervisor, launchers and service may do with a job's channel."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def address(self) -> str:
        """What a worker is given to find its end."""
        return str(self._folder)

    def open(self, spec: str) -> None:
        """Begin an attempt with that specification (JSON). What an earlier one logged and kept to go on from stays; its events
        and result are in the store already. Raises DiskFull or WorkError."""
        with files.disk_errors(self._folder):
            for name in (EVENTS, WORK):
                shutil.rmtree(self._folder / name, ignore_errors=True)
                (self._folder / name).mkdir(parents=True)
            (self._folder / RESULT).unlink(missing_ok=True)
        files.write(self._folder / SPEC, spec)

    def segments(self, after: int) -> list[tuple[int, list[Event]]]:
        """Event segments numbered above `after`, in order; none behind a gap."""
        found = []
        number = after + 1
        while (path := self._folder / EVENTS / segment_name(number)).exists():
            found.append((number, decode(path.read_bytes())))
            number += 1
        return found

    def result(self) -> dict[str, Any] | None:
        """The result document, or None while there is none."""
        path = self._folder / RESULT
        if not path.exists():
            return None
        document: dict[str, Any] = json.loads(path.read_bytes())
        return document

    @property
    def output(self) -> Path:
        """The folder on this machine with what the job published, to be verified and moved; none where it published nothing."""
        return self._folder / WORK / OUTPUT

    def clear(self) -> None:
        """Remove scratch and unpublished work."""
        shutil.rmtree(self._folder / WORK, ignore_errors=True)

    def log_sink(self) -> BinaryIO:
        """The log, open to append what a worker on this machine prints. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return (self._folder / LOG).open("ab")

    def log(self, *, tail_bytes: int | None = None) -> str:
        """What the worker printed in all attempts, or the last bytes of it; empty while there is nothing."""
        path = self._folder / LOG
        if not path.exists():
            return ""
        with path.open("rb") as source:
            if tail_bytes is not None:
                source.seek(max(0, path.stat().st_size - tail_bytes))
            return source.read().decode(errors="replace")

    def kept_bytes(self) -> int:
        """What lies there to go on from. Spilled hidden states count by what they take on the disk."""
        found = 0
        for path in (path for folder in self._kept() for path in folder.rglob("*")):
            try:
                found += path.stat().st_blocks * 512 if path.is_file() else 0
            except FileNotFoundError:  # the job goes on, or somebody else dropped it
                continue
        return found

    def drop_kept(self) -> None:
        """An attempt after this begins anew."""
        for folder in self._kept():
            shutil.rmtree(folder, ignore_errors=True)

    def _kept(self) -> list[Path]:
        return [path for path in self._folder.glob(f"{RESUME}*") if path.is_dir()]


def of(settings: Settings, job_id: str) -> Channel:
    """The channel of a job of this home."""
    return Channel(settings.jobs / job_id)


class JobChannel:
    """The worker's end, the only way a worker speaks. Event segments are put once each. Any thread may emit."""

    def __init__(self, address: Path) -> None:
        self._folder = address
        self._segment = 0
        self._waiting: list[Event] = []
        self._flushed = 0.0
        self._lock = threading.RLock()

    @property
    def job(self) -> str:
        """The job's id."""
        return self._folder.name

    def spec(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self._folder / SPEC).read_text())
        return document

    @property
    def work(self) -> Path:
        """Scratch space on the worker's machine, removed when the job ends."""
        return self._folder / WORK

    @property
    def output(self) -> Path:
        """What the job publishes; nothing counts until the supervisor has verified it."""
        return self.work / OUTPUT

    def resume(self, name: str = "") -> Path:
        """A folder beside the scratch space that the next attempt finds as this one left it; one for each name."""
        return self._folder / "-".join([RESUME, name] if name else [RESUME])

    def side_log(self, name: str) -> Path:
        """The log of a program that the job starts."""
        return self._folder / f"{name}.log"

    def emit(self, event: Event, *, urgent: bool = True) -> None:
        """Queue an event; written at once when urgent, else at most four times a second, with what came before it."""
        with self._lock:
            self._waiting.append(event)
            if urgent or time.monotonic() - self._flushed > FLUSH_S:
                self.flush()

    def flush(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            number = self._segment + 1  # taken once it is written: a number left out would hide all that come after it
            files.write(self._folder / EVENTS / segment_name(number), encode(self._waiting))
            self._segment = number
            self._waiting.clear()
            self._flushed = time.monotonic()

    def result(self, document: dict[str, Any]) -> None:
        """Say how the job ended; after all that it emitted."""
        self.flush()
        files.write(self._folder / RESULT, json.dumps(document))
