"""Launchers: they start workers on this machine, on a Ray cluster, or at SageMaker."""

from __future__ import annotations

import sys

from backend.launchers.base import Launcher
from backend.launchers.local import LocalLauncher
from backend.launchers.routing import RoutingLauncher
from backend.launchers.sagemaker import SageMakerLauncher, is_managed
from backend.settings import Settings


def choose_launcher(settings: Settings) -> Launcher:
    """Return the launcher of this home's jobs.

    Jobs that AWS runs go to SageMaker; what computes goes to the cluster if there is one. Installs, imports and servers
    on loopback addresses stay on this machine.
    """
    return RoutingLauncher(make_worker_launcher(settings), SageMakerLauncher(settings), is_managed)


def make_worker_launcher(settings: Settings, python: str = sys.executable) -> Launcher:
    """Make the launcher of jobs whose workers are ours: on this machine, or on the nodes of a cluster. `python` starts
    them."""
    local = LocalLauncher(settings.home, python)
    if settings.ray_address is None:
        return local
    from backend.launchers.cluster.launcher import RayLauncher

    return RoutingLauncher(
        local, RayLauncher(settings, python=python), lambda channel: channel.granted().claim is not None
    )
