"""The worker's end of a job channel, as a folder: the only way a worker speaks. Standard library and pydantic only."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from backend import files
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
            files.write(self.folder / form.EVENTS / form.segment_name(number), form.encode(self._waiting))
            self._segment = number
            self._waiting.clear()
            self._flushed = time.monotonic()

    def result(self, document: dict[str, Any]) -> None:
        self.flush()
        files.write(self.folder / form.RESULT, json.dumps(document))
