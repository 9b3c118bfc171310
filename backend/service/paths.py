"""What a person writes as a path, without surprises: too long, a user who does not exist, a null byte are just not there."""

from __future__ import annotations

from pathlib import Path

from backend.domain.errors import RequestError


def resolved(source: str) -> Path | None:
    """The absolute path, `~` expanded; None where that cannot be one. Raises RequestError where it is no UTF-8."""
    try:
        found = Path(source).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    if not str(found).isprintable() and not _is_text(str(found)):
        raise RequestError(f"The path {ascii(str(found))[:200]} is not UTF-8 text: rename the folder or file.")
    return found


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def file(source: str) -> Path | None:
    """The file of that name, or None."""
    path = resolved(source)
    try:
        return path if path is not None and path.is_file() else None
    except OSError:
        return None


def folder(source: str) -> Path | None:
    """The folder of that name, or None."""
    path = resolved(source)
    try:
        return path if path is not None and path.is_dir() else None
    except OSError:
        return None
