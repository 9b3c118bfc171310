"""Which job a supervisor is at, in a file of its home: what stands there after a crash is what it crashed at.

So a job that ends every supervisor that looks at it is known, and no healthy one is blamed for a supervisor that was
killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = "in-hand"
WIDTH = 96
"""Bytes, always all of them, so that a full disk does not keep the file from being written."""


class CrashMarker:
    """`suspect`: the job that the supervisor before this one ended at; `deaths`: how many in a row ended there."""

    def __init__(self, home: Path) -> None:
        self._path = home / NAME
        words = self._path.read_text(errors="replace") if self._path.exists() else ""
        job, _, deaths = words.strip().partition(" ")
        self.suspect, self.deaths = (job, int(deaths)) if deaths.isdigit() else ("", 0)

    @contextmanager
    def mark(self, job_id: str) -> Iterator[None]:
        """While the block runs, that job is in hand. One that ends by an exception leaves it there: the process may end
        by it."""
        deaths = self.deaths if job_id == self.suspect else 0
        self._write(f"{job_id} {deaths + 1}")
        yield
        self._write("")
        if job_id == self.suspect:
            self.suspect, self.deaths = "", 0

    def _write(self, words: str) -> None:
        with suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(file, words.ljust(WIDTH).encode(), 0)
            os.close(file)
