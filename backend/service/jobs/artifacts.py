"""Artifacts: list, show, verify, delete."""

from __future__ import annotations

import tarfile
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from backend.artifacts import folders
from backend.domain.errors import ReadOnly
from backend.domain.frozen import Frozen
from backend.domain.jobs.artifact import Manifest
from backend.domain.roles import Action
from backend.domain.validation import readable
from backend.service.workspace import Workspace
from backend.store import history
from backend.store.tables import ArtifactRow


class ArtifactView(Frozen):
    """An artifact as screens and tools see it."""

    id: str
    job_id: str
    owner: str
    model: str
    recipe: str
    recipe_hash: str
    path: str
    bytes: int
    created_at: datetime
    manifest: Manifest


def _view(row: ArtifactRow) -> ArtifactView:
    fields = {name: getattr(row, name) for name in ArtifactView.model_fields if name != "manifest"}
    return ArtifactView(**fields, manifest=Manifest.model_validate_json(row.manifest))


def listing(
    workspace: Workspace, *, model: str | None = None, owner: str | None = None, limit: int = 100, offset: int = 0
) -> list[ArtifactView]:
    """Newest first."""
    with workspace.store.read() as session:
        return readable(history.artifacts(session, model=model, owner=owner, limit=limit, offset=offset), _view)


def show(workspace: Workspace, artifact_id: str) -> ArtifactView:
    """Raises NotFound."""
    with workspace.store.read() as session:
        return _view(history.artifact(session, artifact_id))


def verify(workspace: Workspace, artifact_id: str) -> ArtifactView:
    """Re-hash every file against the manifest in the store. Raises NotFound, ArtifactCorrupt, ReadOnly in a demonstration."""
    shown = show(workspace, artifact_id)
    if workspace.read_only:
        raise ReadOnly(f"The files of {artifact_id} are not part of this demonstration, so they cannot be verified here.")
    folders.verify(Path(shown.path), shown.manifest)
    return shown


def archive(workspace: Workspace, artifact_id: str) -> bytes:
    """A tar of its verified files in one folder named after it, for a download. Raises as `verify`."""
    shown, content = verify(workspace, artifact_id), BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        tar.add(shown.path, arcname=artifact_id)
    return content.getvalue()


def delete(workspace: Workspace, artifact_id: str) -> None:
    """Remove the row, then the files. Raises NotFound."""

    def take(session: Any) -> Path:
        row = history.artifact(session, artifact_id)
        session.delete(row)
        return Path(row.path)

    folder = workspace.change(Action.DELETE_ARTIFACT, artifact_id, take)
    if folder.parent == workspace.settings.artifacts and folder.is_dir():  # a damaged row may name any folder
        folders.remove(folder)
