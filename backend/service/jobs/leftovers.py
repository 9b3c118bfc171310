"""What an ended job keeps in the home so that it can go on where it stopped: how much that is, and dropping it."""

from __future__ import annotations

import shutil
from pathlib import Path

from backend.domain.errors import NotNow
from backend.domain.jobs import channel
from backend.domain.jobs.jobs import TERMINAL, JobState
from backend.service.workspace import Workspace
from backend.store import queue


def size(workspace: Workspace, job_id: str) -> int:
    """Bytes that the job keeps; 0 for nothing. Spilled hidden states count by what they take on the disk."""
    found = 0
    for path in _folder(workspace, job_id).rglob("*"):
        try:
            found += path.stat().st_blocks * 512 if path.is_file() else 0
        except FileNotFoundError:  # the job goes on, or somebody else dropped it
            continue
    return found


def drop(workspace: Workspace, job_id: str) -> int:
    """Drop it and return the bytes; resumed later, the job begins anew. Raises NotFound; NotNow unless the job has ended."""
    with workspace.store.session() as session:
        row = queue.get(session, job_id)
        if JobState(row.state) not in TERMINAL:
            raise NotNow(f"Job {job_id} is {row.state}: what it keeps can be dropped once it has ended.")
        freed = size(workspace, row.id)
        shutil.rmtree(_folder(workspace, row.id), ignore_errors=True)
    return freed


def _folder(workspace: Workspace, job_id: str) -> Path:
    return workspace.settings.jobs / job_id / channel.RESUME
