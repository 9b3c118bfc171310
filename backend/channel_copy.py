"""This machine's copy of a job's channel whose worker runs on another machine, without a disk that both have."""

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
"""How long what is kept may hold up events at a time."""


class RemoteChannel(Protocol):
    """The machine where a worker runs: files of the attempt's channel there. Raises WorkError where it does not
    answer."""

    def read(self, name: str, offset: int, most: int) -> bytes: ...

    def write(self, name: str, offset: int, content: bytes, mtime_ns: int | None) -> None:
        """Put bytes there; with a time of change (ns) they were the file's last."""


RemoteFile = tuple[str, int, int]
"""Name in the channel's folder, bytes, time of its last change in ns."""
ResumeFiles = Mapping[str, tuple[str, int]]
"""What is kept to go on from at one moment: name in the channel's folder -> (SHA-256, bytes)."""


class ChannelCopy:
    """This machine's copy of a channel whose worker runs on another one.

    What was asked and kept goes there; what the worker says, keeps and makes comes here, the result last. What it keeps
    comes as it lay there at one moment, all of it or nothing. A copy that is broken off goes on from what lies here.
    For one thread.
    """

    FOLDERS: ClassVar[list[str]] = [EVENTS, WORK]
    """That a worker finds."""
    RUNNING: ClassVar[list[str]] = [EVENTS, ALIVE, "*.log", LOG]
    """What `fetch` wants to know of, as globs."""
    KEPT: ClassVar[list[str]] = [f"{RESUME}*"]
    """What `carry` does."""
    ENDED: ClassVar[list[str]] = [*RUNNING, f"{WORK}/{OUTPUT}", RESULT]

    def __init__(self, channel: Channel, far: RemoteChannel) -> None:
        self._folder, self._far = Path(channel.address), far
        self._here: dict[str, tuple[str, int]] | None = None
        """What lies here of what is kept; None while nobody looked."""
        self._coming: ResumeFiles | None = None
        self._alive = 0

    @property
    def begun(self) -> bool:
        """Whether anything was fetched: a worker was there."""
        return (self._folder / LOG).exists()

    def send(self) -> None:
        """What was asked, and what an earlier attempt kept to go on from."""
        for path in [*self._kept(), *sorted(self._folder.glob("*.json"))]:
            self.put(path, str(path.relative_to(self._folder)))

    def put(self, path: Path, name: str) -> None:
        """A file of this machine under that name there, with its time of change."""
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
        """Bring this copy to what lies there; which files are not needed there any more.

        Output and result only once the worker has `ended`. Raises ChannelDamaged.
        """
        files_of = {
            top: [row for row in there if self._top(row[0]) == top] for top in {self._top(row[0]) for row in there}
        }
        for name, size, _ in [
            row for top, rows in files_of.items() if top.endswith(".log") or top == LOG for row in rows
        ]:
            self._append(name, size, name)
        carried = [row[0] for row in files_of.get(EVENTS, [])]
        for name in carried:
            if not (self._folder / name).exists():
                files.write(self._folder / name, self._far.read(name, 0, MOST_SEGMENT), flush=False)
        for _, _, changed in files_of.get(ALIVE, []):
            if changed != self._alive:
                self._alive = changed
                self._show()
        if ended:
            for row in [*files_of.get(WORK, []), *files_of.get(RESULT, [])]:
                self._take(row)
        return carried

    def carry(self, kept: ResumeFiles, below: str) -> bool:
        """Bring what is kept here, which lies there below that folder, for about CARRY_S; True once there is no more to
        do.

        What is here is replaced at once, when all has come and is what its SHA-256 says. Raises ChannelDamaged.
        """
        coming, until = self._folder / COMING, time.monotonic() + CARRY_S
        if self._coming != kept:  # parts of another moment, or of another supervisor's try
            shutil.rmtree(coming, ignore_errors=True)
            self._coming = kept
        if self._here is None:
            self._here = {
                str(path.relative_to(self._folder)): (_sha256(path), path.stat().st_size) for path in self._kept()
            }
        if self._here == kept:
            return True
        for name, (sha, size) in kept.items():
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
        if all(
            self._here.get(name) == (sha, size) or _sha256(coming / name) == sha for name, (sha, size) in kept.items()
        ):
            self._replace(coming)
            self._here = dict(kept)
        shutil.rmtree(coming, ignore_errors=True)
        return True

    def _replace(self, coming: Path) -> None:
        coming.mkdir(exist_ok=True)
        for old in self._folder.glob(f"{RESUME}*"):
            old.rename(coming / f".{old.name}")
        for new in coming.glob(f"{RESUME}*"):
            new.rename(self._folder / new.name)

    def _kept(self) -> list[Path]:
        return sorted(
            path for folder in self._folder.glob(f"{RESUME}*") for path in folder.rglob("*") if path.is_file()
        )

    def _take(self, row: RemoteFile) -> None:
        """The whole file, unless it is here already."""
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
        """Bring the file to that size from its end on; False where there was no time for all of it."""
        with (self._folder / name).open("ab") as target:
            while (at := target.tell()) < size:
                content = self._far.read(there, at, min(CHUNK, size - at))
                if not content:
                    break
                target.write(content)
                target.flush()
                self._show()
                if time.monotonic() > until:
                    return target.tell() >= size
        return True

    def _top(self, name: str) -> str:
        """The first part of the name, which another machine chose. Raises ChannelDamaged."""
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts:
            raise ChannelDamaged(
                f"The worker's machine names a file {name!r}, which lies in no channel, so the job was ended."
            )
        return parts[0]

    def _show(self) -> None:
        """The worker's process lives, or its files are on their way."""
        (self._folder / ALIVE).touch()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
