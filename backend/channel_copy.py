"""This machine's copy of a job's channel whose worker runs on another machine, without a shared disk."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from backend import files
from backend.channel import ALIVE, COMING, EVENTS, LOG, OUTPUT, RESULT, RESUME, WORK, Channel, ChannelDamaged

CHUNK, MOST_SEGMENT = 4 << 20, 64 << 20
"""Bytes of a file that go from machine to machine at a time, and the most of one segment of events."""
CARRY_S = 1.0
"""Seconds that resume files may delay events at a time."""


class RemoteChannel(Protocol):
    """The attempt's channel on the machine where its worker runs. Methods raise WorkError if it does not answer."""

    def read(self, name: str, offset: int, most: int) -> bytes: ...

    def write(self, name: str, offset: int, content: bytes, mtime_ns: int | None) -> None:
        """Put bytes there; with a time of change (ns) they were the file's last."""


RemoteFile = tuple[str, int, int]
"""Name in the channel's folder, bytes, time of its last change in ns."""
ResumeFiles = Mapping[str, tuple[str, int]]
"""The resume files at one moment: name in the channel's folder -> (SHA-256, bytes)."""


class ChannelCopy:
    """This machine's copy of a channel whose worker runs on another one.

    The specification and resume files go there; events, logs, resume files and output come here, the result last.
    Resume files come as they were at one moment, all of them or none. A copy that is interrupted continues with what is
    here. Not to be shared between threads.
    """

    FOLDERS: ClassVar[list[str]] = [EVENTS, WORK]
    """Folders that a worker finds."""
    RUNNING: ClassVar[list[str]] = [EVENTS, ALIVE, "*.log", LOG]
    """The files that `fetch` needs while the worker runs, as globs."""
    RESUMED: ClassVar[list[str]] = [f"{RESUME}*"]
    """The files that `carry` copies."""
    ENDED: ClassVar[list[str]] = [*RUNNING, f"{WORK}/{OUTPUT}", RESULT]

    def __init__(self, channel: Channel, far: RemoteChannel) -> None:
        self._folder, self._far = Path(channel.address), far
        self._here: dict[str, tuple[str, int]] | None = None
        """The resume files that are here; None until they were read."""
        self._coming: ResumeFiles | None = None
        self._alive = 0

    @property
    def begun(self) -> bool:
        """Return whether anything was fetched, which means that a worker was there."""
        return (self._folder / LOG).exists()

    def send(self) -> None:
        """Send the specification and the resume files of an earlier attempt."""
        for path in [*self._resume_files(), *sorted(self._folder.glob("*.json"))]:
            self.put(path, str(path.relative_to(self._folder)))

    def put(self, path: Path, name: str) -> None:
        """Send a file of this machine to that name there, with its time of change."""
        status, offset = path.stat(), 0
        with path.open("rb") as source:
            while True:
                content = source.read(CHUNK)
                last = offset + len(content) >= status.st_size or not content
                self._far.write(name, offset, content, status.st_mtime_ns if last else None)
                self._show()
                if last:
                    return
                offset += len(content)

    def fetch(self, there: list[RemoteFile], *, ended: bool) -> list[str]:
        """Bring this copy up to date with the files there. Return which files are not needed there any more.

        Output and result are fetched only once the worker has `ended`. Raises ChannelDamaged.
        """
        # 1. Sort the files by their top folder.
        files_of = {
            top: [row for row in there if self._top(row[0]) == top] for top in {self._top(row[0]) for row in there}
        }
        for name, size, _ in [
            row for top, rows in files_of.items() if top.endswith(".log") or top == LOG for row in rows
        ]:
            self._append(name, size, name)

        # 2. Fetch new event segments, and note that the worker lives.
        carried = [row[0] for row in files_of.get(EVENTS, [])]
        for name in carried:
            if not (self._folder / name).exists():
                files.write(self._folder / name, self._far.read(name, 0, MOST_SEGMENT), flush=False)
        for _, _, changed in files_of.get(ALIVE, []):
            if changed != self._alive:
                self._alive = changed
                self._show()

        # 3. Fetch output and result.
        if ended:
            for row in [*files_of.get(WORK, []), *files_of.get(RESULT, [])]:
                self._take(row)
        return carried

    def carry(self, files_there: ResumeFiles, below: str) -> bool:
        """Copy the resume files, which are there below that folder, for about CARRY_S. Return True once all are here.

        The files here are replaced at once, after all have come and match their SHA-256. Raises ChannelDamaged.
        """
        coming, until = self._folder / COMING, time.monotonic() + CARRY_S

        # 1. Begin anew if the files are of another moment.
        if self._coming != files_there:  # parts of another moment, or of another supervisor's try
            shutil.rmtree(coming, ignore_errors=True)
            self._coming = files_there
        if self._here is None:
            self._here = {
                str(path.relative_to(self._folder)): (_sha256(path), path.stat().st_size)
                for path in self._resume_files()
            }
        if self._here == files_there:
            return True

        # 2. Fetch each file; what is here already is linked.
        for name, (sha, size) in files_there.items():
            path = coming / name
            if not self._top(name).startswith(RESUME):
                raise ChannelDamaged(
                    f"The worker's machine keeps {name!r}, which nothing goes on from, so the job was ended."
                )
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() and self._here.get(name) == (sha, size):
                os.link(self._folder / name, path)
            if not self._append(f"{COMING}/{name}", size, f"{below}/{name}", until):
                return False

        # 3. Replace the files here.
        if all(
            self._here.get(name) == (sha, size) or _sha256(coming / name) == sha
            for name, (sha, size) in files_there.items()
        ):
            self._replace(coming)
            self._here = dict(files_there)
        shutil.rmtree(coming, ignore_errors=True)
        return True

    def _replace(self, coming: Path) -> None:
        coming.mkdir(exist_ok=True)
        for old in self._folder.glob(f"{RESUME}*"):
            old.rename(coming / f".{old.name}")
        for new in coming.glob(f"{RESUME}*"):
            new.rename(self._folder / new.name)

    def _resume_files(self) -> list[Path]:
        return sorted(
            path for folder in self._folder.glob(f"{RESUME}*") for path in folder.rglob("*") if path.is_file()
        )

    def _take(self, row: RemoteFile) -> None:
        """Fetch the whole file, unless it is here already."""
        name, size, changed = row
        path = self._folder / name
        if path.is_file() and (path.stat().st_size, path.stat().st_mtime_ns) == (size, changed):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.staged_file(path, flush=False) as staged:
            with staged.open("wb") as target:
                while target.tell() < size and (content := self._far.read(name, target.tell(), CHUNK)):
                    target.write(content)
                    self._show()
            os.utime(staged, ns=(changed, changed))

    def _append(self, name: str, size: int, there: str, until: float = math.inf) -> bool:
        """Fetch the rest of the file up to that size. Return False if there was no time for all of it."""
        with (self._folder / name).open("ab") as target:
            while (offset := target.tell()) < size:
                content = self._far.read(there, offset, min(CHUNK, size - offset))
                if not content:
                    break
                target.write(content)
                target.flush()
                self._show()
                if time.monotonic() > until:
                    return target.tell() >= size
        return True

    def _top(self, name: str) -> str:
        """Return the first part of a name that another machine chose. Raises ChannelDamaged."""
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts:
            raise ChannelDamaged(
                f"The worker's machine names a file {name!r}, which lies in no channel, so the job was ended."
            )
        return parts[0]

    def _show(self) -> None:
        """Show that the worker's process lives, or that its files are on their way."""
        (self._folder / ALIVE).touch()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
