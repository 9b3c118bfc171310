"""What happens to a job's result: it is verified and put in its place (`stage`, which may take minutes), then recorded.

What is staged stands under its own name before a row names it; where the record is refused, `withdraw` takes it away
again. An artifact goes to the place that is chosen (`artifacts.places`).
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
from backend.domain.jobs.jobs import Event, JobKind, ManagedSpec
from backend.domain.jobs.kinds import KINDS
from backend.domain.model.facts import ModelCard
from backend.settings import Settings
from backend.store import artifact_contents, history, models
from backend.store.artifact_contents import Contents
from backend.store.database import Store
from backend.store.tables import ArtifactRow, EvaluationRow, JobRow, ModelRow

TELL_S = 2.0
"""Between two words on how far an upload is."""


class NotPlaced(WorkError):
    """The artifact cannot be put in its place now; nothing of it is lost, and it is tried again."""


class Staged(NamedTuple):
    """A result that is in its place. `record` writes its rows, which is short, and answers with the result document.

    `folder` is what nobody needs where the record is refused, None where others may use it; `contents` are the same of
    an artifact.
    """

    record: Callable[[Session], dict[str, Any]]
    folder: Path | None = None
    contents: tuple[str, ...] = ()


def stage(settings: Settings, store: Store, row: JobRow, output: Path, document: dict[str, Any]) -> Staged:
    """Verify what the job made and put it in its place. The store hears of an artifact's contents, in short
    transactions.

    Raises ArtifactCorrupt where the output is not what its manifest says, NotPlaced, OSError, and KeyError or
    ValueError where the document is not of the job's kind.
    """
    match KINDS[JobKind(row.kind)].result:
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
    """Says in the job's events how far an upload or a download is, every few seconds. `words` have {} for the bytes."""

    def __init__(self, store: Store, job_id: str, words: str) -> None:
        self._store, self._job, self._words, self._at = store, job_id, words, 0.0

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._at < TELL_S:
            return
        first, self._at = not self._at, time.monotonic()
        message = self._words.format(f"{total / 1e6:.1f} MB") if first else None
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
    """Remove what was staged and is not to be, unless a row names it. What cannot be removed now, a collection will."""
    if staged.folder is not None and staged.folder.is_dir():
        with store.read() as session:
            named = session.get(EvaluationRow, staged.folder.name)
        if named is None or named.path != str(staged.folder):
            artifact_folder.remove(staged.folder)
    if staged.contents:
        given_up = store.run(lambda session: artifact_contents.withdraw(session, row.id, staged.contents))
        locations.location_for_new(settings).remove(given_up)
        store.run(lambda session: artifact_contents.forget_removed(session, given_up))


def _artifact(settings: Settings, store: Store, row: JobRow, output: Path, document: dict[str, Any]) -> Staged:
    identity = Path(str(document["artifact"])).name
    try:
        place = locations.location_for_new(settings)
        tell = TransferEvents(store, row.id, f"Putting {{}} into {place.address}")
        manifest, address, held = place.publish(output, identity, Contents(store, row.id), tell)
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
        session.flush()
        artifact_contents.link_contents(session, manifest.id, held)
        models.list_in_catalog(session, manifest.parent)
        return {**document, "artifact": manifest.id, "path": address}

    return Staged(record, contents=held)


def _managed(settings: Settings, store: Store, row: JobRow, output: Path, document: dict[str, Any]) -> Staged:
    """What SageMaker made becomes an artifact where that was asked for and its files are weights; else it stays in
    S3."""
    spec = ManagedSpec.model_validate_json(row.spec)
    if spec.parent is None:
        return Staged(lambda _: document)
    try:
        manifest = sagemaker_output.stage(
            spec, row.id, document, output, TransferEvents(store, row.id, f"Fetching {{}} from {document['output']}")
        )
    except sagemaker_output.Unusable as error:
        left = {**document, "left": str(error)}
        return Staged(lambda _: left)
    except WhetstoneError as error:
        raise NotPlaced(str(error)) from error
    sizes = {"bytes_before": manifest.bytes_before, "bytes_after": manifest.bytes_after}
    return _artifact(settings, store, row, output, {**document, **sizes, "artifact": manifest.id})


def _evaluation(settings: Settings, row: JobRow, output: Path, document: dict[str, Any]) -> Staged:
    identity = "e-" + row.id.removeprefix("j-") + ("" if row.attempt == 1 else f"-{row.attempt}")
    final = settings.evaluations / identity
    final.parent.mkdir(parents=True, exist_ok=True)
    if output.exists():
        read_evaluation((output / "evaluation.json").read_bytes())
        shutil.rmtree(final, ignore_errors=True)
        output.rename(final)
    text = (final / "evaluation.json").read_bytes()
    evaluation = read_evaluation(text)

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
    """The gathered folder becomes visible under its own name by one rename, and in the catalog; `model` is its card."""
    staged, final = Path(document["staged"]), Path(document["path"])
    # else it was there before, or an earlier supervisor published it and died before it could say so
    if staged.exists():
        artifact_folder.publish(staged, final)
    card = ModelCard.model_validate(document["model"])
    found = ModelRow(path=str(final), name=card.id, owner=row.owner, licence=card.licence, card=card.model_dump_json())

    def record(session: Session) -> dict[str, Any]:
        kept = models.remember(session, found)
        rest = {name: value for name, value in document.items() if name != "staged"}
        return {**rest, "model": json.loads(kept.card), "name": kept.name}

    return Staged(record)
