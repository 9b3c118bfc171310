"""Artifacts of a bucket on this machine's disk: fetched when they are asked for, and given up again, the longest unused
first.

Whoever uses one holds its lock shared, and its process' end gives it back, whatever that end is. A folder is whole
where it has its manifest, which is written last; until then it may hold some of its files, each of them verified when
it arrived.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from backend import files
from backend.artifacts.artifact_folder import MANIFEST


class Cache:
    """`most_bytes`: what it keeps beside what is in use."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def folder_of(self, name: str) -> Path:
        return self.folder / name

    def is_whole(self, name: str) -> bool:
        return (self.folder_of(name) / MANIFEST).is_file()

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """Nobody takes its folder away meanwhile."""
        with self._opened(name) as lock:
            files.wait_for_lock(lock, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                os.utime(self.folder_of(name))
            yield

    @contextmanager
    def filling(self, name: str) -> Iterator[None]:
        """Nobody else uses or fills its folder meanwhile."""
        with self._opened(name) as lock:
            files.wait_for_lock(lock, fcntl.LOCK_EX)
            yield

    def make_room(self, needed: int) -> None:
        """Give up what was not used the longest until so many more bytes are within the bound; what is in use stays."""
        paths = [path for path in self.folder.glob("*") if path.is_dir()]
        sizes = {path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in paths}
        left = sum(sizes.values()) + needed
        for path in sorted(paths, key=lambda path: path.stat().st_mtime):
            if left <= self.most_bytes:
                return
            if self.drop(path.name):
                left -= sizes[path]

    def drop(self, name: str) -> bool:
        """False where somebody uses it."""
        with self._opened(name) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            (self.folder_of(name) / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(self.folder_of(name), ignore_errors=True)
            return True

    def adopt(self, name: str, folder: Path) -> None:
        """Take a whole, verified folder of this disk over, by links; elsewhere it is fetched when it is asked for."""
        if self.most_bytes == 0 or self.is_whole(name):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.filling(name), suppress(OSError):
            shutil.rmtree(self.folder_of(name), ignore_errors=True)
            top = str(folder)
            shutil.copytree(
                folder,
                self.folder_of(name),
                copy_function=os.link,
                ignore=lambda directory, names: {MANIFEST} if directory == top else (),
            )
            shutil.copyfile(folder / MANIFEST, self.folder_of(name) / MANIFEST)

    @contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.lock").open("ab") as lock:
            yield lock
