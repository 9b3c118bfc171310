"""Where workers run."""

from __future__ import annotations

import sys

from backend.launchers.base import Launcher
from backend.launchers.local import LocalLauncher
from backend.launchers.routing import RoutingLauncher
from backend.launchers.sagemaker import SageMakerLauncher, is_managed
from backend.settings import Settings


def choose_launcher(settings: Settings) -> Launcher:
    """The launcher of this home's jobs: those that AWS runs go there, what computes to the cluster where there is one.
    What belongs to this machine stays on it, such as installs, imports and servers on its loopback."""
    return RoutingLauncher(make_worker_launcher(settings), SageMakerLauncher(settings), is_managed)


def make_worker_launcher(settings: Settings, python: str = sys.executable) -> Launcher:
    """Of the jobs whose workers are ours: on this machine, or on the nodes of a cluster. `python` starts them."""
    local = LocalLauncher(settings.home, python)
    if settings.ray_address is None:
        return local
    from backend.launchers.cluster.launcher import RayLauncher

    return RoutingLauncher(
        local, RayLauncher(settings, python=python), lambda channel: channel.granted().claim is not None
    )
