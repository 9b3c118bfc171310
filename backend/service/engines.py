"""Engine environments: what is installed, what each can do here, install and remove as jobs."""

from __future__ import annotations

from backend.domain.environments import check_installable
from backend.domain.jobs import InstallSpec
from backend.hardware import engines
from backend.hardware.engines import EngineStatus
from backend.service import jobs
from backend.service.jobs import JobView
from backend.service.workspace import Workspace

__all__ = ["EngineStatus", "install", "listing", "remove"]


def listing(workspace: Workspace) -> list[EngineStatus]:
    return engines.list_engines(workspace.settings)


def install(workspace: Workspace, name: str) -> JobView:
    """Queue the installation. Raises NotFound for an unknown engine, RequestError where it cannot be installed here."""
    check_installable(name)
    return jobs.submit(workspace, InstallSpec(engine=name), f"Install the engine {name}")


def remove(workspace: Workspace, name: str) -> JobView:
    """Queue the removal. Raises NotFound for an unknown engine."""
    check_installable(name)
    return jobs.submit(workspace, InstallSpec(engine=name, action="remove"), f"Remove the engine {name}")
