"""What a person writes as a path, without surprises: too long, a user who does not exist, a null byte are just not there.

Where others reach the studio they name files of its home, of the checkout's assets and of the folders that the owner listed, and
of no others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from backend import settings
from backend.domain.errors import RequestError


def resolved(source: str) -> Path | None:
    """The absolute path, `~` expanded; None where that cannot be one. Raises RequestError where it is no UTF-8."""
    try:
        path = Path(source).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise RequestError(f"The path {ascii(str(path))[:200]} is not UTF-8 text: rename the folder or file.") from None
    return path


def file(source: str) -> Path | None:
    """The file of that name, or None. Raises RequestError as `folder`."""
    return _confined(source, Path.is_file)


def folder(source: str) -> Path | None:
    """The folder of that name, or None. Raises RequestError where others reach the studio and it is none of those that they may
    name."""
    return _confined(source, Path.is_dir)


def _confined(source: str, is_kind: Callable[[Path], bool]) -> Path | None:
    """None also where what is written need not be meant as a path: a hub id may be the name of a folder here, too."""
    path = resolved(source)
    try:
        if path is None or not is_kind(path):
            return None
    except OSError:
        return None
    chosen = settings.load()
    within = (chosen.home, settings.ASSETS, chosen.artifacts, *chosen.import_folders)
    if not chosen.shared or any(path.is_relative_to(each) for each in within):
        return path
    if not source.startswith((".", "/", "~")):
        return None
    named = ", ".join(map(str, chosen.import_folders)) or "none is listed"
    raise RequestError(
        f"{path} lies outside of the folders that this studio reads for others ({named}): move it there, or ask its owner to "
        "list the folder in WHETSTONE_IMPORT_FOLDERS."
    )
