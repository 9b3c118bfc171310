"""What a person writes as a path, without surprises: too long, a user who does not exist, a null byte are just not there.

Where others reach the studio they name files of its home, of the checkout's assets and of the folders that the owner listed, and
of no others.
"""

from __future__ import annotations

from pathlib import Path

from backend import settings
from backend.domain.errors import RequestError


def resolved(source: str) -> Path | None:
    """The absolute path, `~` expanded; None where that cannot be one. Raises RequestError where it is no UTF-8."""
    try:
        path = Path(source).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    if not str(path).isprintable() and not _is_text(str(path)):
        raise RequestError(f"The path {ascii(str(path))[:200]} is not UTF-8 text: rename the folder or file.")
    return path


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def file(source: str) -> Path | None:
    """The file of that name, or None. Raises RequestError as `folder`."""
    path = resolved(source)
    try:
        return _confined(source, path) if path is not None and path.is_file() else None
    except OSError:
        return None


def folder(source: str) -> Path | None:
    """The folder of that name, or None. Raises RequestError where others reach the studio and it is none of those that they may
    name."""
    path = resolved(source)
    try:
        return _confined(source, path) if path is not None and path.is_dir() else None
    except OSError:
        return None


def _confined(source: str, path: Path) -> Path | None:
    """None where what is written need not be meant as a path: a hub id may be the name of a folder here, too."""
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
