"""The worker's end of a job channel, as a folder: the only way a worker speaks. Standard library and pydantic only."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from backend.domain.jobs import channel as form
from backend.domain.jobs.jobs import Event


class JobChannel:
    """Numbered event segments and one result, each put once (written aside, then renamed). Any thread may emit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._segment = 0
        self._waiting: list[Event] = []
        self._flushed = 0.0
        self._lock = threading.RLock()

    def spec(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / form.SPEC).read_text())
        return document

    @property
    def work(self) -> Path:
        """Scratch space, removed when the job ends."""
        return self.folder / form.WORK

    @property
    def output(self) -> Path:
        """What the job publishes; nothing counts until the supervisor has verified it."""
        return self.work / form.OUTPUT

    def emit(self, event: Event, *, urgent: bool = True) -> None:
        """Queue an event; written at once when urgent, else at most four times a second, with what came before it."""
        with self._lock:
            self._waiting.append(event)
            if urgent or time.monotonic() - self._flushed > 0.25:
                self.flush()

    def flush(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            number = self._segment + 1  # taken once it is written: a number left out would hide all that come after it
            self._put(self.folder / form.EVENTS / form.segment_name(number), form.encode(self._waiting))
            self._segment = number
            self._waiting.clear()
            self._flushed = time.monotonic()

    def checkpoint(self, name: str, document: dict[str, Any]) -> None:
        """Named state that a resumed attempt may read; kept outside the scratch space."""
        self._put(self.folder / f"checkpoint-{name}.json", json.dumps(document).encode())

    def result(self, document: dict[str, Any]) -> None:
        self.flush()
        self._put(self.folder / form.RESULT, json.dumps(document).encode())

    @staticmethod
    def _put(path: Path, content: bytes) -> None:
        aside = path.with_name(f".{path.name}.new")
        with aside.open("wb") as sink:
            sink.write(content)
            sink.flush()
            os.fsync(sink.fileno())
        aside.replace(path)
