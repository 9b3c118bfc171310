"""What one person may have at once: jobs queued and running, bytes of artifacts. Checked in the transaction that adds one."""

from __future__ import annotations

from typing import Any

from backend.domain.errors import TooMuch
from backend.domain.jobs.jobs import LIVE, JobKind, JobState
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.history import JobFilter

ACTIVE = [*LIVE, JobState.QUEUED]


def check(workspace: Workspace, session: Any, owner: str, kind: str) -> None:
    """Once the job of that owner is in the queue. Raises TooMuch, which takes it out again."""
    most, gigabytes = workspace.settings.max_jobs, workspace.settings.max_artifacts_gb
    if most is not None and (count := history.count_jobs(session, JobFilter(ACTIVE, owner=owner))) > most:
        raise TooMuch(
            f"{owner} has {count - 1} jobs queued or running, and one person may have {most:.0f} here "
            "(WHETSTONE_MAX_JOBS): wait until one has ended, or cancel one."
        )
    makes = kind in {JobKind.OPTIMIZE, JobKind.TRAIN}
    if gigabytes is not None and makes and (held := history.artifact_bytes(session, owner)) >= gigabytes * 1e9:
        raise TooMuch(
            f"{owner} has {held / 1e9:.2f} GB of artifacts, and one person may have {gigabytes:g} GB here "
            "(WHETSTONE_MAX_ARTIFACTS_GB): delete some first."
        )
