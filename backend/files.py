"""Puts files and folders in place whole or not at all. Standard library only, so that a process under any interpreter
may use it.

What is being written stands beside its place under a name that nobody else uses: a dot, a random word, the final name.
Two processes that write the same file leave one of the two, and a reader never sees half of either.
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
    """A new name beside `path`, with the same ending."""
    return path.with_name(f".{secrets.token_hex(4)}.{path.name}")


def write(path: Path, content: str | bytes, *, flush: bool = True) -> None:
    """Write the content, text as UTF-8. Raises and flushes as `staged_file` does."""
    with staged_file(path, flush=flush) as staged:
        staged.write_bytes(content.encode() if isinstance(content, str) else content)


def copy(source: Path, path: Path) -> None:
    """The bytes of `source` at `path`. Raises and flushes as `staged_file` does."""
    with staged_file(path) as staged:
        shutil.copyfile(source, staged)


@contextmanager
def staged_file(path: Path, *, flush: bool = True) -> Iterator[Path]:
    """A path to write to, put in place when the block ends. What nobody reads after a crash need not be flushed to
    disk.

    Raises DiskFull or WorkError, as `disk_errors` does. After any exception what was at `path` before is as it was, and
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
    """A new folder to fill, put in place when the block ends; where somebody else was faster, theirs stays and this one
    goes.

    Raises what the block raises, and OSError where the folder cannot be made or put in place.
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
    """flock(2) in looks, so that a signal's handler runs between two; `waits` is called once where another has it."""
    told = False
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not told:
                waits()
            told = True
            time.sleep(POLL_S)


@contextmanager
def exclusive(path: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """While the block runs, no other process of this machine is in one of the same path; that file stays, empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        wait_for_lock(lock, fcntl.LOCK_EX, waits)
        yield


def stamp(folder: Path) -> str:
    """What tells a folder's files from others without reading them: names, sizes, times of change; empty where it is
    gone."""
    try:
        found = sorted(
            (path.name, at.st_size, at.st_mtime_ns)
            for path in folder.iterdir()
            if (at := path.stat()) and path.is_file()
        )
    except OSError:
        return ""
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


def disk_full(where: Path) -> DiskFull:
    """The sentence of a disk that has no room for `where`."""
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
