"""Where workers run."""

from __future__ import annotations

from backend.launchers.base import Launcher
from backend.launchers.local import LocalLauncher
from backend.settings import Settings


def chosen(settings: Settings) -> Launcher:
    """The launcher of this home's jobs."""
    return LocalLauncher(settings.home)
