"""Writes files and folders completely or not at all. Standard library only, so that any interpreter may use it.

What is being written is beside its place under a name that nobody else uses: a dot, a random word, the final name. Of
two processes that write the same file one wins, and a reader never sees half a file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from backend.domain.errors import DiskFull, WorkError

POLL_S = 0.2


def staging_name(path: Path) -> Path:
    """Return a new name beside `path`, with the same ending."""
    return path.with_name(f".{secrets.token_hex(4)}.{path.name}")


def write(path: Path, content: str | bytes, *, flush: bool = True) -> None:
    """Write the content, text as UTF-8. Raises and flushes as `staged_file` does."""
    with staged_file(path, flush=flush) as staged:
        staged.write_bytes(content.encode() if isinstance(content, str) else content)


def copy(source: Path, path: Path) -> None:
    """Copy the bytes of `source` to `path`. Raises and flushes as `staged_file` does."""
    with staged_file(path) as staged:
        shutil.copyfile(source, staged)


@contextmanager
def staged_file(path: Path, *, flush: bool = True) -> Iterator[Path]:
    """Yield a path to write to, which gets its final name when the block ends. What nobody reads after a crash need not
    be flushed.

    Raises DiskFull or WorkError, as `disk_errors` does. After any exception the file at `path` is as it was, and
    nothing is left beside it.
    """
    staged = staging_name(path)
    try:
        with disk_errors(path):
            yield staged
            if flush:
                with staged.open("rb") as file:
                    os.fsync(file.fileno())
            staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder to fill, which gets its final name when the block ends. If another process was faster, its
    folder stays and this one is removed.

    Raises what the block raises, and OSError if the folder cannot be made or renamed.
    """
    staged = staging_name(path)
    staged.mkdir(parents=True)
    try:
        yield staged
        try:
            staged.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def wait_for_lock(lock: BinaryIO, kind: int, waits: Callable[[], None] = lambda: None) -> None:
    """Take the lock (flock(2)) by polling, so that signal handlers run; `waits` is called once if another process has
    it."""
    waiting = False
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not waiting:
                waits()
            waiting = True
            time.sleep(POLL_S)


@contextmanager
def exclusive(path: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Run the block while no other process of this machine is in a block of the same path. The file stays, empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        wait_for_lock(lock, fcntl.LOCK_EX, waits)
        yield


def stamp(folder: Path) -> str:
    """Return a stamp of a folder's files that changes when they do, without reading them: names, sizes, times of
    change. Empty if the folder is gone."""
    try:
        entries = sorted(
            (path.name, status.st_size, status.st_mtime_ns)
            for path in folder.iterdir()
            if (status := path.stat()) and path.is_file()
        )
    except OSError:
        return ""
    return hashlib.sha256(repr(entries).encode()).hexdigest()[:16]


def disk_full(where: Path) -> DiskFull:
    """Return the error for a disk that has no room for `where`."""
    return DiskFull(
        f"The disk filled up while writing {where}: nothing was registered. Free some space, then resume the job."
    )


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn a full disk into DiskFull, other trouble with files into WorkError that names `where`."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise disk_full(where) from None
        raise WorkError(f"{where} cannot be written ({error}): check the folder and its permissions.") from None
