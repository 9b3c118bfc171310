"""Registers the results of jobs: verifies them, puts them in their place, and records them in the store.

`stage` verifies a result and puts it in its place, which may take minutes; no row names it yet. `Staged.record` writes
its rows. If the record is refused, `withdraw` removes the result. An artifact goes to the location that the settings
choose (`artifacts.locations`).
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sqlmodel import Session

from backend.artifacts import artifact_folder, locations, sagemaker_output
from backend.domain.errors import ArtifactCorrupt, WhetstoneError, WorkError
from backend.domain.evaluation.document import read_evaluation
from backend.domain.jobs.jobs import Event, ManagedSpec
from backend.domain.jobs.kinds import KINDS
from backend.domain.model.facts import ModelCard
from backend.settings import Settings
from backend.store import artifact_contents, history, models
from backend.store.artifact_contents import Contents
from backend.store.database import Store
from backend.store.tables import ArtifactRow, EvaluationRow, JobRow, ModelRow

REPORT_S = 2.0
"""Between two events on the progress of a transfer."""


class NotPlaced(WorkError):
    """The artifact cannot be put in its place now. Nothing is lost, and it is tried again."""


class Staged(NamedTuple):
    """A result that is in its place. `record` writes its rows in a short transaction and returns the result document.

    If the record is refused, nobody needs `folder` (None if others may use it) and, of an artifact, `contents`.
    """

    record: Callable[[Session], dict[str, Any]]
    folder: Path | None = None
    contents: tuple[str, ...] = ()


def stage(settings: Settings, store: Store, row: JobRow, output: Path, document: dict[str, Any]) -> Staged:
    """Verify what the job made and put it in its place. Short transactions record an artifact's contents meanwhile.

    Raises ArtifactCorrupt if the output differs from its manifest, NotPlaced, OSError, and KeyError or ValueError if
    the document is not one of the job's kind.
    """
    match KINDS[row.kind].result:
        case "artifact":
            return _artifact(settings, store, row, output, document)
        case "managed-artifact":
            return _managed(settings, store, row, output, document)
        case "evaluation":
            return _evaluation(settings, row, output, document)
        case "model":
            return _model(row, document)
        case None:
            return Staged(lambda _: document)


class TransferEvents:
    """Reports the progress of an upload or a download in the job's events, every few seconds.

    `message` has {} for the size.
    """

    def __init__(self, store: Store, job_id: str, message: str) -> None:
        self._store, self._job, self._message, self._reported_s = store, job_id, message, 0.0

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._reported_s < REPORT_S:
            return
        first, self._reported_s = not self._reported_s, time.monotonic()
        message = self._message.format(f"{total / 1e6:.1f} MB") if first else None
        event = Event(
            kind="phase" if first else "progress",
            phase="upload",
            message=message,
            done=float(done),
            total=float(total),
            unit="bytes",
            progress=1.0,
        )
        self._store.run(lambda session: history.append(session, self._job, [event]))


def withdraw(settings: Settings, store: Store, row: JobRow, staged: Staged) -> None:
    """Remove a staged result whose record was refused, unless a row names it. A collection removes what stays."""
    if staged.folder is not None and staged.folder.is_dir():
        with store.read() as session:
            evaluation = session.get(EvaluationRow, staged.folder.name)
        if evaluation is None or evaluation.path != str(staged.folder):
            artifact_folder.remove(staged.folder)
    if staged.contents:
        given_up = store.run(lambda session: artifact_contents.withdraw(session, row.id, staged.contents))
        locations.location_for_new(settings).remove(given_up)
        store.run(lambda session: artifact_contents.forget_removed(session, given_up))


def _artifact(settings: Settings, store: Store, row: JobRow, output: Path, document: dict[str, Any]) -> Staged:
    identity = Path(str(document["artifact"])).name
    try:
        location = locations.location_for_new(settings)
        report = TransferEvents(store, row.id, f"Putting {{}} into {location.address}")
        manifest, address, contents = location.publish(output, identity, Contents(store, row.id), report)
    except ArtifactCorrupt:
        raise
    except WhetstoneError as error:
        raise NotPlaced(str(error)) from error

    def record(session: Session) -> dict[str, Any]:
        session.merge(
            ArtifactRow(
                id=manifest.id,
                job_id=row.id,
                owner=row.owner,
                model=manifest.parent.id,
                recipe=manifest.recipe.name,
                recipe_hash=manifest.recipe_hash,
                path=address,
                bytes=manifest.bytes_after,
                manifest=manifest.model_dump_json(),
            )
        )
        # These rows refer to that of the artifact.
        session.flush()
        artifact_contents.link_contents(session, manifest.id, contents)
        models.list_in_catalog(session, manifest.parent)
        return {**document, "artifact": manifest.id, "path": address}

    return Staged(record, contents=contents)


def _managed(settings: Settings, store: Store, row: JobRow, output: Path, document: dict[str, Any]) -> Staged:
    """Turn SageMaker's output into an artifact if the job was to fetch it and its files are weights; otherwise it stays
    in S3."""
    # Without a parent, the job was not to fetch anything.
    spec = ManagedSpec.model_validate_json(row.spec)
    if spec.parent is None:
        return Staged(lambda _: document)
    try:
        manifest = sagemaker_output.stage(
            spec, row.id, document, output, TransferEvents(store, row.id, f"Fetching {{}} from {document['output']}")
        )
    except sagemaker_output.Unusable as error:
        unfetched = {**document, "left": str(error)}
        return Staged(lambda _: unfetched)
    except WhetstoneError as error:
        raise NotPlaced(str(error)) from error
    sizes = {"bytes_before": manifest.bytes_before, "bytes_after": manifest.bytes_after}
    return _artifact(settings, store, row, output, {**document, **sizes, "artifact": manifest.id})


def _evaluation(settings: Settings, row: JobRow, output: Path, document: dict[str, Any]) -> Staged:
    identity = "e-" + row.id.removeprefix("j-") + ("" if row.attempt == 1 else f"-{row.attempt}")
    # 1. Move the output to its place; after a crash it may be there already.
    final = settings.evaluations / identity
    final.parent.mkdir(parents=True, exist_ok=True)
    if output.exists():
        read_evaluation((output / "evaluation.json").read_bytes())
        shutil.rmtree(final, ignore_errors=True)
        output.rename(final)
    text = (final / "evaluation.json").read_bytes()
    evaluation = read_evaluation(text)

    # 2. Make the row, to be written with the job's end.
    def record(session: Session) -> dict[str, Any]:
        session.merge(
            EvaluationRow(
                id=identity,
                job_id=row.id,
                owner=row.owner,
                title=row.title,
                baseline=evaluation.variants[0].name,
                path=str(final),
                document=json.dumps(json.loads(text)),
            )
        )
        return {**document, "evaluation": identity, "path": str(final), "report": str(final / "report.html")}

    return Staged(record, final)


def _model(row: JobRow, document: dict[str, Any]) -> Staged:
    """Rename the gathered folder to its final name and list the model in the catalog; `model` is its card."""
    staged, final = Path(document["staged"]), Path(document["path"])
    if staged.exists():  # otherwise an earlier supervisor published it and died before it could record that
        artifact_folder.publish(staged, final)
    card = ModelCard.model_validate(document["model"])
    model_row = ModelRow(
        path=str(final), name=card.id, owner=row.owner, licence=card.licence, card=card.model_dump_json()
    )

    def record(session: Session) -> dict[str, Any]:
        remembered = models.remember(session, model_row)
        rest = {name: value for name, value in document.items() if name != "staged"}
        return {**rest, "model": json.loads(remembered.card), "name": remembered.name}

    return Staged(record)
