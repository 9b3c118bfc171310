"""The crash marker: a file of the home that names the job at which the previous supervisor died.

So a job that ends every supervisor that attends to it is known, and no healthy job is blamed for a supervisor that was
killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAME = "in-hand"
WIDTH = 96
"""Bytes of the file, always all of them, so that a full disk does not keep it from being written."""


class CrashMarker:
    """`suspect`: the job at which the previous supervisor died; `deaths`: how many in a row died there."""

    def __init__(self, home: Path) -> None:
        self._path = home / NAME
        text = self._path.read_text(errors="replace") if self._path.exists() else ""
        job, _, deaths = text.strip().partition(" ")
        self.suspect, self.deaths = (job, int(deaths)) if deaths.isdigit() else ("", 0)

    @contextmanager
    def mark(self, job_id: str) -> Iterator[None]:
        """Name the job in the file while the block runs. A block that raises leaves the name: the process may end."""
        deaths = self.deaths if job_id == self.suspect else 0
        self._write(f"{job_id} {deaths + 1}")
        yield
        self._write("")
        if job_id == self.suspect:
            self.suspect, self.deaths = "", 0

    def _write(self, text: str) -> None:
        with suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(file, text.ljust(WIDTH).encode(), 0)
            os.close(file)
