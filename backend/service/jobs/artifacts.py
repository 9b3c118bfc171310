"""Artifacts: list, show, verify, fetch, archive, delete."""

from __future__ import annotations

import tarfile
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

from backend.artifacts import locations
from backend.artifacts.base import Tell, ignore_progress
from backend.domain.errors import NotNow, ReadOnly
from backend.domain.frozen import Frozen
from backend.domain.jobs.artifact import Manifest, read_manifest
from backend.domain.model.facts import ModelCard
from backend.domain.roles import Action
from backend.domain.validation import readable_rows
from backend.service.jobs import artifact_storage
from backend.service.workspace import Workspace
from backend.store import artifact_contents, history
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
    return ArtifactView(**fields, manifest=read_manifest(row.manifest))


def listing(
    workspace: Workspace, *, model: str | None = None, owner: str | None = None, limit: int = 100, offset: int = 0
) -> list[ArtifactView]:
    """Newest first."""
    with workspace.store.read() as session:
        return readable_rows(
            history.list_artifacts(session, model=model, owner=owner, limit=limit, offset=offset), _view
        )


def list_ids(workspace: Workspace, *, model: str | None = None, limit: int = 100) -> list[str]:
    """Return the ids of the artifacts in `listing`, including those whose manifest cannot be read."""
    with workspace.store.read() as session:
        return [row.id for row in history.list_artifacts(session, model=model, owner=None, limit=limit, offset=0)]


def variants(workspace: Workspace, *, limit: int = 100) -> list[ArtifactView]:
    """Return the artifacts that can be served, newest first: all but drafts."""
    return [view for view in listing(workspace, limit=limit) if not view.manifest.is_draft]


def drafts(workspace: Workspace, model: ModelCard) -> list[ArtifactView]:
    """Return the drafts that were trained for a model, newest first."""
    views = listing(workspace, model=model.id)
    return [view for view in views if view.manifest.is_draft and view.manifest.parent.revision == model.revision]


def show(workspace: Workspace, artifact_id: str) -> ArtifactView:
    """Raises NotFound."""
    with workspace.store.read() as session:
        return _view(history.get_artifact(session, artifact_id))


def verify(workspace: Workspace, artifact_id: str, tell: Tell = ignore_progress) -> ArtifactView:
    """Check the hash of every file against the manifest in the store. Raises NotFound, ArtifactCorrupt; ReadOnly in a
    demonstration."""
    shown = show_with_files(workspace, artifact_id)
    locations.location_of(workspace.settings, shown.path).verify(shown.path, shown.manifest, tell)
    return shown


def show_with_files(workspace: Workspace, artifact_id: str) -> ArtifactView:
    """Return an artifact whose files are here. Raises NotFound; ReadOnly in a demonstration."""
    shown = show(workspace, artifact_id)
    if workspace.read_only:
        raise ReadOnly(
            f"The files of {artifact_id} are not part of this demonstration, so they cannot be verified here."
        )
    return shown


def fetch(workspace: Workspace, artifact_id: str, tell: Tell = ignore_progress) -> Path:
    """Return a local folder with the verified files, fetched from the bucket if necessary. Raises as `verify`."""
    shown = show_with_files(workspace, artifact_id)
    with locations.location_of(workspace.settings, shown.path).use(shown.path, artifact_id, tell) as folder:
        return folder


def archive(workspace: Workspace, artifact_id: str) -> bytes:
    """Return a tar of the verified files in one folder named after the artifact. Raises as `verify`."""
    shown, content = show_with_files(workspace, artifact_id), BytesIO()
    place = locations.location_of(workspace.settings, shown.path)
    with place.use(shown.path, artifact_id) as folder, tarfile.open(fileobj=content, mode="w") as tar:
        tar.add(folder, arcname=artifact_id)
    return content.getvalue()


def delete(workspace: Workspace, artifact_id: str) -> None:
    """Delete the row, then the files that no other artifact uses. Raises NotFound, NotAllowed; NotNow while a job reads
    it."""

    def take(session: Any) -> None:
        row = history.get_artifact(session, artifact_id)
        if reading := artifact_contents.list_users(session, artifact_id):
            raise NotNow(f"{artifact_id} is read by job {reading[0].id} ({reading[0].title}): cancel that one first.")
        artifact_contents.remove_artifact(session, row.id)

    workspace.change(Action.DELETE_ARTIFACT, artifact_id, take)
    artifact_storage.remove_abandoned_files(workspace)
