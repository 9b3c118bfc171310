"""This machine's copy of a job's channel whose worker runs on another machine, without a disk that both have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Protocol

from backend import files
from backend.channel import ALIVE, EVENTS, LOG, OUTPUT, RESULT, RESUME, WORK, Channel, ChannelDamaged

CHUNK, MOST_SEGMENT = 4 << 20, 64 << 20
"""Bytes of a file that go from machine to machine at a time, and the most of one segment of events."""


class Far(Protocol):
    """The machine where a worker runs: files of the attempt's channel there. Raises WorkError where it does not answer."""

    def read(self, name: str, offset: int, most: int) -> bytes: ...

    def write(self, name: str, offset: int, content: bytes, mtime_ns: int | None) -> None:
        """Put bytes there; with a time of change (ns) they were the file's last."""


FarFile = tuple[str, int, int]
"""Name in the channel's folder, bytes, time of its last change in ns."""


class Copy:
    """This machine's copy of a channel whose worker runs on another one.

    What was asked and kept goes there; what the worker says, keeps and makes comes here, the result last. A copy that is
    broken off goes on from what lies here. For one thread.
    """

    FOLDERS: ClassVar[list[str]] = [EVENTS, WORK]
    """That a worker finds."""
    RUNNING: ClassVar[list[str]] = [EVENTS, ALIVE, "*.log", LOG, f"{RESUME}*"]
    """What `fetch` wants to know of, as globs."""
    ENDED: ClassVar[list[str]] = [*RUNNING, f"{WORK}/{OUTPUT}", RESULT]

    def __init__(self, channel: Channel, far: Far) -> None:
        self._folder, self._far = Path(channel.address), far
        self._seen: set[FarFile] = set()
        self._alive = 0

    @property
    def begun(self) -> bool:
        """Whether anything was fetched: a worker was there."""
        return (self._folder / LOG).exists()

    def send(self) -> None:
        """What was asked, and what an earlier attempt kept to go on from."""
        paths = [path for folder in self._folder.glob(f"{RESUME}*") for path in sorted(folder.rglob("*")) if path.is_file()]
        for path in [*paths, *sorted(self._folder.glob("*.json"))]:
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

    def fetch(self, there: list[FarFile], *, ended: bool) -> list[str]:
        """Bring this copy to what lies there; which files are not needed there any more.

        What is kept to go on from is taken once it stood still between two looks, or the worker has `ended`. Raises
        ChannelDamaged.
        """
        files_of = {top: [row for row in there if self._top(row[0]) == top] for top in {self._top(row[0]) for row in there}}
        for name, size, _ in [row for top, rows in files_of.items() if top.endswith(".log") or top == LOG for row in rows]:
            self._append(name, size)
        carried = [row[0] for row in files_of.get(EVENTS, [])]
        for name in carried:
            if not (self._folder / name).exists():
                files.write(self._folder / name, self._far.read(name, 0, MOST_SEGMENT), flush=False)
        for _, _, changed in files_of.get(ALIVE, []):
            if changed != self._alive:
                self._alive = changed
                self._show()
        self._fetch_kept([row for top, rows in files_of.items() if top.startswith(RESUME) for row in rows], ended=ended)
        if ended:
            for row in [*files_of.get(WORK, []), *files_of.get(RESULT, [])]:
                self._take(row)
        return carried

    def _fetch_kept(self, there: list[FarFile], *, ended: bool) -> None:
        for row in there:
            if ended or row in self._seen:
                self._take(row)
        self._seen, names = set(there), {row[0] for row in there}
        for path in (path for folder in self._folder.glob(f"{RESUME}*") for path in folder.rglob("*") if path.is_file()):
            if str(path.relative_to(self._folder)) not in names:
                path.unlink()

    def _take(self, row: FarFile) -> None:
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

    def _append(self, name: str, size: int) -> None:
        path = self._folder / name
        with path.open("ab") as target:
            while (at := target.tell()) < size and (content := self._far.read(name, at, CHUNK)):
                target.write(content)
                target.flush()

    def _top(self, name: str) -> str:
        """The first part of the name, which another machine chose. Raises ChannelDamaged."""
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts:
            raise ChannelDamaged(f"The worker's machine names a file {name!r}, which lies in no channel, so the job was ended.")
        return parts[0]

    def _show(self) -> None:
        """The worker's process lives, or its files are on their way."""
        (self._folder / ALIVE).touch()
