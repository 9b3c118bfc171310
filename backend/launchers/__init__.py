"""Where workers run."""

from __future__ import annotations

from backend.launchers.base import Launcher
from backend.launchers.divided import Divided
from backend.launchers.local import LocalLauncher
from backend.launchers.sagemaker import SageMakerLauncher, is_managed
from backend.settings import Settings


def chosen(settings: Settings) -> Launcher:
    """The launcher of this home's jobs: those that AWS runs go there, what computes to the cluster where there is one. What
    belongs to this machine stays on it, such as installs, imports and servers on its loopback."""
    return Divided(_here(settings), SageMakerLauncher(settings), is_managed)


def _here(settings: Settings) -> Launcher:
    local = LocalLauncher(settings.home, warm=settings.warm_workers)
    if settings.ray_address is None:
        return local
    from backend.launchers.cluster.launcher import RayLauncher

    return Divided(local, RayLauncher(settings), lambda channel: channel.granted().claim is not None)
