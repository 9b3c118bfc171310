"""The engines of a first start: installed by watched jobs beside the first page, the one that is ready first in front.

The jobs yield, like those of the demo: a person's own job that needs their place goes first.
"""

from __future__ import annotations

from backend.domain.jobs.jobs import InstallSpec, JobKind, JobState
from backend.domain.machine.environments import LLAMA_CPP, SERVE
from backend.hardware import engine_status
from backend.service.jobs import jobs
from backend.service.jobs.jobs import JobView
from backend.service.machines import engines
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.history import JobFilter

TITLES = {LLAMA_CPP.name: "Install llama.cpp (seconds)", SERVE.name: "Install vLLM (a large download)"}
"""The engines in their order. From a wheel llama.cpp is there in seconds; vLLM downloads and unpacks 1 to 2 GB."""
NAMES = {LLAMA_CPP.name: "llama.cpp", SERVE.name: "vLLM"}
JOBS_READ = 1000


def begin(workspace: Workspace) -> list[JobView]:
    """Queue an installation of each engine that is missing or not as its lock says, unless one is queued or running."""
    submitted = []
    for name, title in TITLES.items():
        if engine_status.is_current(workspace.settings, name):
            continue
        # The key counts earlier installations, so that many studios which start at once queue one job.
        earlier = _installations(workspace, name)
        if all(job.ended for job in earlier):
            # Nobody waits for a compiler: what was built before is used, else a wheel.
            spec = InstallSpec(engine=name, compiled=False)
            key = f"setup-{name}-{len(earlier)}"
            submitted.append(jobs.submit(workspace, spec, title, submission=key, yields=True))
    return submitted


def _installations(workspace: Workspace, engine: str) -> list[JobView]:
    """Return all jobs that installed or removed that engine, newest first."""
    job_views = jobs.listing(workspace, kinds=[JobKind.INSTALL], limit=JOBS_READ)
    specifications = jobs.specifications(workspace, [job.id for job in job_views])
    return [job for job in job_views if specifications[job.id]["engine"] == engine]


def find_under_way(workspace: Workspace) -> dict[str, JobView]:
    """Return the installations that are queued or running, by engine."""
    latest = engines.latest_jobs(workspace)
    return {name: latest[name] for name in TITLES if name in latest and not latest[name].ended}


def find_failed(workspace: Workspace) -> dict[str, JobView]:
    """Return the latest installations that failed and left no engine, by engine."""
    failed = {}
    for name, job in engines.latest_jobs(workspace).items():
        missing = name in TITLES and engine_status.read_marker(workspace.settings.engines, name) is None
        if missing and job.state in {JobState.FAILED, JobState.LOST}:
            failed[name] = job
    return failed


def count_own_jobs(workspace: Workspace) -> int:
    """Return the number of jobs beside the installations that a start of the studio queued."""
    with workspace.store.read() as session:
        installations = history.count_jobs(session, JobFilter(kinds=[JobKind.INSTALL], yields=True))
    return jobs.count(workspace) - installations
