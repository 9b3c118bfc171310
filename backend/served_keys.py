"""Keys of the servers that Whetstone starts on loopback ports: a random one for each start, which only the same user
can read.

Whoever asks such a server finds its key by the port, whichever process and home asks: the worker that measures, the
Playground, `whetstone bench`. A key lies in a file rather than on a command line, which everybody on the machine may
read.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from backend.domain.errors import WorkError

BYTES = 32
"""Random bytes in a key."""
LONGEST = 200
"""Characters of a file that may be a key."""


def file(port: int) -> Path:
    """Return the file that holds the key of our server on that port."""
    return _folder() / f"{port}.key"


def make(port: int) -> str:
    """A new key for the server that is about to start on that port. Raises WorkError where no private folder can be
    had."""
    path, key = file(port), secrets.token_urlsafe(BYTES)
    _check_private(path.parent)
    staged = path.with_name(f".{secrets.token_hex(8)}")
    with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(key)
    staged.replace(path)
    return key


def find_or_make(port: int) -> str:
    """The key of the server on that port, which one that is started again keeps. Raises WorkError as `make`."""
    return find(port) or make(port)


def find(port: int) -> str | None:
    """The key of the server that was last started there; None where none of ours was."""
    path = file(port)
    with suppress(OSError, WorkError):
        _check_private(path.parent)
        key = path.read_text("ascii")[:LONGEST]
        return key or None
    return None


def forget(port: int, key: str) -> None:
    """Erase the key of a server that ended, unless another server has the port by now."""
    if find(port) == key:
        with suppress(OSError):
            file(port).unlink()


def _folder() -> Path:
    return Path(tempfile.gettempdir()) / f"whetstone-keys-{os.geteuid()}"


def _check_private(folder: Path) -> None:
    """Make the folder where it is not there. Raises WorkError where others may read it or have made it."""
    try:
        with suppress(FileExistsError):
            folder.mkdir(0o700)
        status = folder.lstat()
    except OSError as error:
        raise WorkError(
            f"{folder}, for the keys of servers, cannot be made ({error.strerror}): check TMPDIR."
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise WorkError(
            f"{folder}, for the keys of servers, is not this user's alone: remove it, or set TMPDIR to another folder."
        )
