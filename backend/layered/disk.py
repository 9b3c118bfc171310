"""Writes a file whole or not at all, and says in a sentence when the disk is full. Knows nothing of what is written."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backend.domain.errors import DiskFull, WorkError


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn a full disk into DiskFull, other trouble with writing into WorkError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        code = getattr(error, "errno", None)
        if code in {errno.ENOSPC, errno.EDQUOT} or f"os error {errno.ENOSPC}" in str(error):
            raise DiskFull() from None
        raise WorkError(f"{where} cannot be written ({error}): check the folder and its permissions.") from None


def write_file(path: Path, write: Callable[[Path], Any], *, flush: bool = True) -> None:
    """Let `write` fill a file aside, flush it to disk and put it in place in one step. What nobody reads after a crash need not
    be flushed.

    Raises DiskFull or WorkError, and then leaves nothing behind.
    """
    aside = path.with_name(path.name + ".partial")
    try:
        with disk_errors(path):
            write(aside)
            if flush:
                with aside.open("rb") as file:
                    os.fsync(file.fileno())
            aside.chmod(0o644)
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
