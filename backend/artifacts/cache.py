"""Copies of a bucket's artifacts on this machine's disk, fetched when needed; the least recently used are erased first.

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
    """Copies by name; `most_bytes` limits what is stored beside those in use."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes

    def folder_of(self, name: str) -> Path:
        return self.folder / name

    def is_whole(self, name: str) -> bool:
        return (self.folder_of(name) / MANIFEST).is_file()

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """Hold a shared lock: nobody erases the folder meanwhile."""
        with self._opened(name) as lock:
            files.wait_for_lock(lock, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                os.utime(self.folder_of(name))
            yield

    @contextmanager
    def filling(self, name: str) -> Iterator[None]:
        """Hold an exclusive lock: nobody else uses or fills the folder meanwhile."""
        with self._opened(name) as lock:
            files.wait_for_lock(lock, fcntl.LOCK_EX)
            yield

    def make_room(self, needed: int) -> None:
        """Erase the least recently used folders until `needed` more bytes fit the limit; folders in use stay."""
        paths = [path for path in self.folder.glob("*") if path.is_dir()]
        sizes = {path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) for path in paths}
        left = sum(sizes.values()) + needed
        for path in sorted(paths, key=lambda path: path.stat().st_mtime):
            if left <= self.most_bytes:
                return
            if self.drop(path.name):
                left -= sizes[path]

    def drop(self, name: str) -> bool:
        """Erase a copy; return False if it is in use."""
        with self._opened(name) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            (self.folder_of(name) / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(self.folder_of(name), ignore_errors=True)
            return True

    def adopt(self, name: str, folder: Path) -> None:
        """Add a whole, verified folder of this disk by hard links; if that fails it is fetched when needed."""
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
