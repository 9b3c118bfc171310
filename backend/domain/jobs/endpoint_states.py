"""The state of an endpoint of this machine, from what its row and its job say. Pure."""

from __future__ import annotations

from enum import StrEnum

from backend.domain.jobs.jobs import TERMINAL, JobState


class EndpointState(StrEnum):
    STARTING = "starting"
    """Its worker is queued or starts."""
    LOADING = "loading"
    LOADED = "loaded"
    IDLE = "idle"
    """Its server is unloaded; the first request loads it."""
    WAITING = "waiting"
    """Its server waits for memory that others have."""
    RESTARTING = "restarting"
    """Its worker or its server ended without being asked to, and is started again."""
    FAILED = "failed"
    STOPPING = "stopping"
    STOPPED = "stopped"

    @property
    def answers(self) -> bool:
        """Tell whether a request is answered or held until it can be."""
        return self not in {EndpointState.FAILED, EndpointState.STOPPING, EndpointState.STOPPED}


PHASES = frozenset(
    {
        EndpointState.LOADING,
        EndpointState.LOADED,
        EndpointState.IDLE,
        EndpointState.WAITING,
        EndpointState.RESTARTING,
    }
)
"""States that its worker reports as phases of its job."""


def find_state(*, to_run: bool, given_up: bool, job_state: JobState | None, phase: str | None) -> EndpointState:
    """Return the state of an endpoint. `job_state`: that of its latest job, None if it has none yet; `phase`: the
    phase that this job's worker reported last."""
    ended = job_state is None or job_state in TERMINAL
    if not to_run:
        return EndpointState.STOPPED if ended else EndpointState.STOPPING
    if given_up:
        return EndpointState.FAILED
    if job_state is None:
        return EndpointState.STARTING
    if ended:
        return EndpointState.RESTARTING
    if job_state is JobState.RUNNING and phase in PHASES:
        return EndpointState(str(phase))
    return EndpointState.STARTING
