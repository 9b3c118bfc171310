"""Limits for one person: unfinished jobs, bytes of artifacts and of imported models, checked in the transaction that
adds one.

It also checks the jobs that need a higher role.
"""

from __future__ import annotations

from typing import Any

from backend.domain.errors import TooMuch
from backend.domain.jobs.jobs import LIVE, JobKind, JobState
from backend.domain.jobs.kinds import KINDS
from backend.domain.roles import Action
from backend.service.jobs import quotas
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.history import JobFilter

ACTIVE = [*LIVE, JobState.QUEUED]
COUNTED = [kind for kind in KINDS if kind != JobKind.ENDPOINT]


def check_engine_role(workspace: Workspace, spec: dict[str, Any]) -> None:
    """Check the actor's role for a job that changes engines. A lock names every file that is installed, but packages
    from another index run as the supervisor's user, so they need an admin.

    `spec` is a job's specification as JSON. Raises NotAllowed, whoever queued the job before.
    """
    if spec.get("kind") != JobKind.INSTALL:
        return
    if spec.get("action") == "remove":
        workspace.check(Action.REMOVE_ENGINE)
    if spec.get("index") is not None:
        workspace.check(Action.INSTALL_FROM_INDEX)


def check_person_limits(workspace: Workspace, session: Any, owner: str, kind: str) -> None:
    """Check the owner's limits after the job was inserted. Raises TooMuch, which rolls the insertion back."""
    # Jobs that wait or run. An endpoint stays until it is stopped, so it is none of them.
    most, gigabytes = workspace.settings.max_jobs, workspace.settings.max_artifacts_gb
    if most is not None:
        count = history.count_jobs(session, JobFilter(ACTIVE, COUNTED, owner=owner))
        if count > most and kind in COUNTED:
            raise TooMuch(
                f"{owner} has {count - 1} jobs queued or running, and one person may have {most:.0f} here "
                "(WHETSTONE_MAX_JOBS): wait until one has ended, or cancel one."
            )
    result = KINDS[kind].result
    if result == "model":
        quotas.check_imports(workspace, session, owner)
    # Bytes of artifacts, which only matter to a job that makes one.
    if gigabytes is not None and result == "artifact":
        used = history.artifact_bytes(session, owner)
        if used >= gigabytes * 1e9:
            raise TooMuch(
                f"{owner} has {used / 1e9:.2f} GB of artifacts, and one person may have {gigabytes:g} GB here "
                "(WHETSTONE_MAX_ARTIFACTS_GB): delete some first."
            )
