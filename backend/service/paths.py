"""What a person writes as a path, without surprises: too long, a user who does not exist, a null byte are just not there."""

from __future__ import annotations

from pathlib import Path


def resolved(source: str) -> Path | None:
    """The absolute path, `~` expanded; None where that cannot be one."""
    try:
        return Path(source).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return None


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
