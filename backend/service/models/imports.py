"""Models from elsewhere: inspect one before it is fetched, and import it as a job."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from backend import transfer
from backend.catalog.bundled import models
from backend.catalog.remote import sources
from backend.domain.errors import LicenceNotAccepted, RequestError, UnknownModel
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import ImportSpec, JobKind
from backend.domain.jobs.terms import Terms
from backend.domain.model.inspection import Inspection
from backend.domain.roles import Action
from backend.present.source_names import short_name
from backend.service import paths
from backend.service.jobs import artifact_storage, jobs, quotas
from backend.service.jobs.jobs import JobView
from backend.service.models import models as local
from backend.service.workspace import Workspace
from backend.store import history
from backend.store import models as imported
from backend.store.history import JobFilter

IMPORT_JOBS_READ = 1000
"""Import jobs, newest first, that are searched for an earlier acceptance."""


class PreparedImport(Frozen):
    """All that is known before the start. `present`: the model is here already, the job only registers it again."""

    spec: ImportSpec
    inspection: Inspection
    present: bool
    to_fetch: int
    """Bytes that are not here yet."""


def is_remote(workspace: Workspace, source: str) -> bool:
    """Tell whether a job must import `source`: it is not bundled, not imported and not a folder."""
    if models.card(source) is not None or paths.find_folder(source) is not None:
        return False
    if sources.is_converted(source):
        if not sources.is_package(source):
            paths.find_file(
                source
            )  # raises where others may not name it; one that is not there is an import that says so
        return True
    with workspace.store.read() as session:
        return sources.is_remote(source) and imported.find_by_name(session, source) is None


def asks_network(source: str) -> bool:
    """Tell whether reading the card needs the network: always, except for a local GGUF file."""
    return sources.is_package(source) or not sources.is_converted(source)


def inspect(
    workspace: Workspace, source: str, *, revision: str | None = None, timeout_s: float | None = None
) -> Inspection:
    """The card of a hub id or s3:// prefix, from ranges of its files: no weights are fetched and nothing is written.
    `timeout_s`: the most patience with a hub or package index.

    Raises ReadOnly, NotAllowed for whoever may not import, since a hub, S3 or a package index is asked; UnknownModel,
    InvalidModel, AccessRefused, SourceUnreachable.
    """
    workspace.check(Action.REMEMBER_MODEL)
    source = source.strip()
    if not sources.is_converted(source):
        return sources.inspect(sources.find(source, revision, timeout_s=timeout_s))
    if revision is not None:
        raise RequestError(
            "A file or package has no revisions: leave {} out; a package's version is written after ==.", "revision"
        )
    if sources.is_package(source):
        return sources.inspect_converted(source, timeout_s=timeout_s)
    if paths.find_file(source) is None:
        raise UnknownModel(local.no_gguf_file(source))
    inspection = sources.inspect_converted(source, timeout_s=timeout_s)
    for name in inspection.files:
        paths.find_file(
            str(Path(inspection.source).with_name(name))
        )  # every part may be read by whoever asks, as the one named
    return inspection


def prepare(
    workspace: Workspace,
    source: str,
    *,
    revision: str | None = None,
    accept_licence: bool = False,
    name: str | None = None,
    timeout_s: float | None = None,
) -> PreparedImport:
    """Check all that can be checked without starting. `name` is what the model will be called, `timeout_s` as of
    `inspect`.

    Raises what `inspect` raises, LicenceNotAccepted, NotEnoughDisk, TooMuch, RequestError for a model that needs no
    import or a name that is taken.
    """
    # 1. Refuse what needs no import.
    workspace.check(Action.SUBMIT)
    source = source.strip()
    if models.card(source) is not None:
        raise RequestError(f"`{source}` comes with Whetstone: it needs no import.")
    if paths.find_folder(source) is not None:
        raise RequestError(f"`{source}` is a folder on this machine: `whetstone models import` takes it as it is.")
    # 2. Read the card without the weights.
    inspection = inspect(workspace, source, revision=revision, timeout_s=timeout_s)
    final = sources.folder(workspace.settings.models, inspection.source, inspection.revision)
    if name is not None:
        local.check_name(workspace, name, str(final))
    # 3. Check licence, quota and disk.
    accepted = _accepted_at(workspace, inspection, accept_licence)
    present = final.exists()
    to_fetch = 0 if present else _bytes_missing(workspace, inspection)
    with workspace.store.read() as session:
        quotas.check_imports(workspace, session, workspace.actor.name, to_fetch)
    artifact_storage.check_disk(workspace, to_fetch, workspace.settings.models, what="import")
    # 4. Freeze the specification.
    spec = ImportSpec(
        source=inspection.source,
        revision=inspection.revision,
        endpoint=inspection.endpoint,
        bytes=inspection.bytes,
        licence=inspection.licence,
        accepted=accepted,
        name=name,
    )
    return PreparedImport(spec=spec, inspection=inspection, present=present, to_fetch=to_fetch)


def _bytes_missing(workspace: Workspace, inspection: Inspection) -> int:
    """Bytes that the import will write: what is not fetched yet, or a GGUF file and its weights in 16 bits."""
    if sources.is_converted(inspection.source):
        return inspection.card.weights_bytes + inspection.bytes if inspection.card else 0
    staged = sources.partial(workspace.settings.models, inspection.source, inspection.revision)
    return inspection.bytes - transfer.present(staged, inspection.files)


def submit(
    workspace: Workspace, prepared: PreparedImport, *, submission: str | None = None, terms: Terms | None = None
) -> JobView:
    """Queue it; it runs beside jobs that use the accelerator."""
    title = f"Import {prepared.spec.name or short_name(prepared.inspection.title)}"
    return jobs.submit(workspace, prepared.spec, title, submission=submission, terms=terms)


def _accepted_at(workspace: Workspace, inspection: Inspection, accept: bool) -> datetime | None:
    """When the licence was accepted: now, or for an earlier import of the same model under the same licence."""
    if not inspection.must_accept:
        return None
    if accept:
        return datetime.now(UTC)
    # An earlier acceptance of the same licence is enough; without one, say what to read.
    earlier = _accepted_before(workspace, inspection)
    if earlier is None:
        licence_text = f"is under the licence `{inspection.licence}`" if inspection.licence else "states no licence"
        gated = " and gated by its owner" if inspection.gated else ""
        where = f"at {inspection.licence_url}" if inspection.licence_url else "where its author publishes them"
        raise LicenceNotAccepted(
            f"{inspection.source} {licence_text}{gated}: read its conditions {where}, then accept it ({{}}).",
            "accept_licence",
        )
    return earlier


def _accepted_before(workspace: Workspace, inspection: Inspection) -> datetime | None:
    with workspace.store.read() as session:
        rows = history.list_jobs(session, JobFilter((), (JobKind.IMPORT,), ""), limit=IMPORT_JOBS_READ, offset=0)
        specs = [ImportSpec.model_validate(json.loads(row.spec)) for row in rows if row.owner == workspace.actor.name]
    same = (
        spec
        for spec in specs
        if (spec.source, spec.endpoint, spec.licence) == (inspection.source, inspection.endpoint, inspection.licence)
    )
    return next((spec.accepted for spec in same if spec.accepted is not None), None)
