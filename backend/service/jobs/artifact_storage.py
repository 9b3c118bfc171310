"""Disk use of artifacts, quota and disk checks, and garbage collection of files that nothing refers to."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from backend.artifacts import locations
from backend.artifacts.base import ArtifactLocation
from backend.domain.errors import NotEnoughDisk, QuotaExceeded
from backend.domain.figures import listed
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import LIVE, JobKind, JobState, OptimizeSpec
from backend.domain.planner import estimate
from backend.domain.roles import Action
from backend.hardware import probe
from backend.service.workspace import Workspace
from backend.store import artifact_contents, history

GRACE = timedelta(hours=24)
"""Age at which files without a reference are removed; a younger one may still be claimed by a job."""

ARTIFACTS_NAMED = 3
"""Artifacts that a refusal names."""


class GarbageCollection(Frozen):
    """The result of a garbage collection, or of its dry run."""

    artifacts: list[str]
    """Ids of removed artifacts, unused for as long as requested."""
    contents: int
    """Files of a bucket, folders of a disk."""
    bytes: int
    dry_run: bool


class _RolledBack(Exception):
    """Raised to roll back a dry run."""


def collect_garbage(
    workspace: Workspace, *, unused_for: timedelta | None = None, grace: timedelta = GRACE, dry_run: bool = False
) -> GarbageCollection:
    """Remove files older than `grace` that no artifact refers to and no unfinished job holds. With `unused_for`, also
    remove artifacts of that age that no job, preset, endpoint or evaluation uses. An interrupted collection is
    completed by the next one.

    Raises ReadOnly in a demonstration, NotAllowed, and what `artifacts.base.Place.remove` does.
    """
    # 1. Choose what to remove, in one transaction.
    workspace.check(Action.COLLECT)
    addresses = [place.address for place in reachable_places(workspace)]

    def choose(session: Any) -> GarbageCollection:
        old = artifact_contents.find_unused(session, unused_for) if unused_for is not None else []
        removed = [one for one in old if artifact_contents.remove_artifact(session, one, unless_named=True)]
        artifact_contents.give_up_unnamed(session, addresses, grace)
        collection = artifact_contents.list_given_up(session, addresses)
        size = sum(row.size for row in collection if row.arrived)
        return GarbageCollection(artifacts=removed, contents=len(collection), bytes=size, dry_run=dry_run)

    # 2. Roll back a dry run.
    if dry_run:
        with suppress(_RolledBack), workspace.store.session() as session:
            chosen = choose(session)
            raise _RolledBack
        return chosen
    # 3. Commit, then delete the files.
    chosen = workspace.change(Action.COLLECT, "artifacts", choose, changed=lambda collection: collection.contents > 0)
    remove_abandoned_files(workspace)
    return chosen


def reachable_places(workspace: Workspace) -> list[ArtifactLocation]:
    """Return the artifact locations that this machine reaches: the home's folder and the configured one."""
    places = [locations.location_for_new(workspace.settings), locations.location_of(workspace.settings, "")]
    return list({place.address: place for place in places}.values())


def remove_abandoned_files(workspace: Workspace) -> None:
    """Delete the files of abandoned rows, also those of an interrupted deletion."""
    for place in reachable_places(workspace):
        with workspace.store.read() as session:
            addresses = [row.address for row in artifact_contents.list_given_up(session, [place.address])]
        place.remove(addresses)
        workspace.store.run(partial(artifact_contents.forget_removed, addresses=addresses))


def check_disk(workspace: Workspace, needed: int, folder: Path | None = None, *, what: str = "job") -> None:
    """Raise NotEnoughDisk if fewer bytes are free on the disk of `folder`, by default the home."""
    free = probe.free_disk(folder or workspace.settings.home)
    if free < needed:
        raise NotEnoughDisk(
            f"This {what} needs {needed / 1e9:.2f} GB of disk and {free / 1e9:.2f} GB are free under "
            f"{workspace.settings.home}: free some, or set WHETSTONE_HOME to a larger disk."
        )


def check_quota(workspace: Workspace, needed: int) -> None:
    """Raise QuotaExceeded, which names artifacts to delete, if so many more bytes do not fit with those of artifacts
    and of unfinished optimize jobs. Raises RequestError if the quota is not a size."""
    # 1. Sum what exists and what unfinished jobs will add.
    quota = locations.quota(workspace.settings)
    if quota is None:
        return
    with workspace.store.read() as session:
        used = artifact_contents.count_bytes(session)
        going = [row for row in history.list_queued(session, [*LIVE, JobState.QUEUED]) if row.kind == JobKind.OPTIMIZE]
        unused, largest = (
            set(artifact_contents.find_unused(session, timedelta(0))),
            artifact_contents.list_largest(session, ARTIFACTS_NAMED),
        )
    promised = sum(_disk_need(row.spec) for row in going)
    if used + promised + needed <= quota:
        return
    # 2. Name artifacts to delete.
    named = [f"{one} ({each / 1e9:.2f} GB{', unused' if one in unused else ''})" for one, each in largest]
    remove = (
        f"delete some with `whetstone artifacts delete`, such as {listed(named)}" if named else "wait for those jobs"
    )
    raise QuotaExceeded(
        f"This job's artifact may take {needed / 1e9:.2f} GB, and of the {quota / 1e9:.2f} GB that artifacts may take "
        f"(WHETSTONE_ARTIFACTS_QUOTA) {used / 1e9:.2f} GB are taken and {promised / 1e9:.2f} GB are for jobs under "
        f"way: {remove}."
    )


def _disk_need(spec: str) -> int:
    try:
        job = OptimizeSpec.model_validate_json(spec)
    except ValidationError:
        return 0
    return estimate.estimate_needs(job.model, job.recipe, job.draft).disk_bytes


class StorageUsage(Frozen):
    """The location of new artifacts, the bytes of all artifacts, and the quota."""

    place: str
    bytes: int
    quota: int | None


def usage(workspace: Workspace) -> StorageUsage:
    """Raises RequestError where a setting is wrong."""
    with workspace.store.read() as session:
        used = artifact_contents.count_bytes(session)
    return StorageUsage(
        place=locations.location_for_new(workspace.settings).address,
        bytes=used,
        quota=locations.quota(workspace.settings),
    )
