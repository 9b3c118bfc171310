"""Where workers run."""

from __future__ import annotations

from backend.launchers.base import Launcher
from backend.launchers.local import LocalLauncher
from backend.settings import Settings


def chosen(settings: Settings) -> Launcher:
    """The launcher of this home's jobs."""
    local = LocalLauncher(settings.home, warm=settings.warm_workers)
    if settings.ray_address is None:
        return local
    from backend.launchers.cluster.divided import Divided
    from backend.launchers.cluster.launcher import RayLauncher

    return Divided(local, RayLauncher(settings))
