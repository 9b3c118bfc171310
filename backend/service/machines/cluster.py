"""The Ray cluster that WHETSTONE_RAY_ADDRESS names, as it is now."""

from __future__ import annotations

from contextlib import closing

from backend.launchers.cluster import launcher
from backend.launchers.cluster.requests import Node
from backend.service.workspace import Workspace


def nodes(workspace: Workspace) -> list[Node]:
    """Those that it knows of, by their addresses. Raises Away with the reason where it does not answer, and EngineMissing."""
    with closing(launcher.client(workspace.settings, "ray-doctor.log")) as client:
        return sorted((Node(**node) for node in client.ask("nodes")), key=lambda node: node.address)
