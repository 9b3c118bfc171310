"""Bytes of imported models for each person and of uploads into the home, and their limits.

A shared studio has default limits, since anybody who may submit could fill the disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.catalog.remote import sources
from backend.domain.errors import TooMuch
from backend.domain.jobs.jobs import LIVE, ImportSpec, JobKind, JobState
from backend.domain.validation import readable_rows
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.history import JobFilter
from backend.store.tables import JobRow

UPLOADED = ("calibration", "imported")
"""Folders of the home that hold uploads, beside the files that lie directly in WORKLOADS."""
WORKLOADS = "workloads"
IMPORT_JOBS_READ = 10_000
"""Import jobs of one person, newest first."""
ACTIVE = {*LIVE, JobState.QUEUED}


def imported_bytes(workspace: Workspace, session: Any, owner: str) -> int:
    """Bytes on disk of all that the person's import jobs fetched, and those that jobs under way will add."""
    rows = history.list_jobs(session, JobFilter(kinds=(JobKind.IMPORT,), owner=owner), limit=IMPORT_JOBS_READ)
    by_place = dict(readable_rows(rows, lambda row: _import_bytes(workspace, row)))
    return sum(by_place.values())


def own_import_quota(workspace: Workspace) -> tuple[int, float] | None:
    """Bytes that the actor has imported, and the gigabytes that one person may have; None where nothing limits that."""
    if workspace.settings.imports_gb is None:
        return None
    with workspace.store.read() as session:
        return imported_bytes(workspace, session, workspace.actor.name), workspace.settings.imports_gb


def _import_bytes(workspace: Workspace, row: JobRow) -> tuple[Path, int]:
    """Return the folder of the job's model and its bytes on disk or expected, complete or not."""
    spec = ImportSpec.model_validate_json(row.spec)
    final = sources.folder(workspace.settings.models, spec.source, spec.revision)
    if final.exists():
        return final, _folder_bytes(final)
    partly = _folder_bytes(sources.partial(workspace.settings.models, spec.source, spec.revision))
    return final, max(partly, spec.bytes) if row.state in ACTIVE else partly


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def check_imports(workspace: Workspace, session: Any, owner: str, more: int = 0) -> None:
    """Raises TooMuch where the person would have more imported than one may, `more` bytes included."""
    gigabytes = workspace.settings.imports_gb
    if gigabytes is None or (total := imported_bytes(workspace, session, owner) + more) <= gigabytes * 1e9:
        return
    raise TooMuch(
        f"{owner} would have {total / 1e9:.2f} GB of imported models, and one person may have {gigabytes:g} GB here "
        "(WHETSTONE_MAX_IMPORTS_GB): ask the studio's owner to remove some from the home's folder `models`, or to "
        "raise that."
    )


def uploaded_bytes(workspace: Workspace) -> int:
    """Bytes on disk of all that was uploaded into the home."""
    home = workspace.settings.home
    own = sum(path.stat().st_size for path in (home / WORKLOADS).glob("*") if path.is_file())
    return own + sum(_folder_bytes(home / name) for name in UPLOADED)


def check_upload(workspace: Workspace, more: int) -> None:
    """Before an upload of so many bytes is kept. Raises TooMuch where the home would hold more than it may."""
    gigabytes = workspace.settings.uploads_gb
    if gigabytes is None or (total := uploaded_bytes(workspace) + more) <= gigabytes * 1e9:
        return
    raise TooMuch(
        f"This home would hold {total / 1e9:.2f} GB of uploads, and it may hold {gigabytes:g} GB "
        "(WHETSTONE_MAX_UPLOADS_GB): ask the studio's owner to remove some from its folders `workloads` and "
        "`calibration`, or to raise the limit."
    )
