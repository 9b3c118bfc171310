"""The worker's end of a job channel, as a folder: the only way a worker speaks. Standard library and pydantic only."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from backend.domain import channel as form
from backend.domain.jobs import Event


class JobChannel:
    """Numbered event segments and one result, each put once (written aside, then renamed)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._segment = 0
        self._waiting: list[Event] = []
        self._flushed = 0.0

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
        self._waiting.append(event)
        if urgent or time.monotonic() - self._flushed > 0.25:
            self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        self._segment += 1
        self._put(self.folder / form.EVENTS / form.segment_name(self._segment), form.encode(self._waiting))
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
