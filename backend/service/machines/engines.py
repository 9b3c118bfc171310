"""Engine environments: list them with their abilities on this machine, install and remove them as jobs."""

from __future__ import annotations

from backend.domain.errors import NotNow
from backend.domain.jobs.jobs import LIVE, InstallSpec, JobKind
from backend.domain.jobs.kinds import KINDS
from backend.domain.machine.environments import require_index, require_installable
from backend.domain.neuron.software_stacks import STACKS
from backend.domain.recipe import quantization_engines
from backend.domain.roles import Action
from backend.hardware import engine_status, pip_index
from backend.hardware.engine_status import EngineStatus
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.workspace import Workspace

__all__ = ["EngineStatus", "install", "latest_jobs", "listing", "remove"]

USERS = {"serve": {kind for kind, row in KINDS.items() if row.serves}}
"""Kinds of job that run from an environment."""
JOBS_READ = 30


def listing(workspace: Workspace) -> list[EngineStatus]:
    return engine_status.list_engines(workspace.settings)


def install(workspace: Workspace, name: str, *, index: str | None = None, submission: str | None = None) -> JobView:
    """Queue the installation. Raises NotFound for an unknown engine, RequestError where it cannot be installed here,
    NotAllowed of an `index` for all but admins."""
    require_index(require_installable(name), index, pip_index.find_default_host() if index is not None else None)
    return jobs.submit(
        workspace, InstallSpec(engine=name, index=index), f"Install the engine {name}", submission=submission
    )


def remove(workspace: Workspace, name: str, *, submission: str | None = None) -> JobView:
    """Queue the removal. Raises NotFound for an unknown engine, NotNow while a job runs from it."""
    workspace.check(Action.REMOVE_ENGINE)
    require_installable(name)
    for job in jobs.active(workspace):
        if job.state in LIVE and (job.kind in USERS.get(name, set()) or name in _environments(workspace, job)):
            raise NotNow(f"The engine {name} is in use by “{job.title}” ({job.id}): wait for its end, or cancel it.")
    spec = InstallSpec(engine=name, action="remove")
    return jobs.submit(workspace, spec, f"Remove the engine {name}", submission=submission)


def _environments(workspace: Workspace, job: JobView) -> set[str | None]:
    """Return the environments that a job uses: engines of its plan, and Neuron stacks that compile or serve."""
    spec = jobs.specification(workspace, job.id)
    compiled = [variant["neuron"]["stack"] for variant in [spec, *spec.get("variants", [])] if variant.get("neuron")]
    steps = spec.get("plan", {}).get("steps", [])
    return {quantization_engines.environment(step["engine"]) for step in steps} | {
        STACKS[name].environment for name in compiled
    }


def latest_jobs(workspace: Workspace) -> dict[str, JobView]:
    """The newest installation or removal of each engine, active or ended."""
    newest, job_views = jobs.listing(workspace, kinds=[JobKind.INSTALL], limit=JOBS_READ), dict[str, JobView]()
    specifications = jobs.specifications(workspace, [job.id for job in newest])
    for job in newest:
        job_views.setdefault(str(specifications[job.id]["engine"]), job)
    return job_views
