"""What happens to a job's result: it is verified and put in its place (`stage`, which may take minutes), then recorded.

What is staged stands under its own name before a row names it; where the record is refused, `withdraw` takes it away again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from sqlmodel import Session

from backend.artifacts import folders
from backend.domain.evaluation.document import read_evaluation
from backend.domain.model.facts import ModelCard
from backend.settings import Settings
from backend.store import models
from backend.store.tables import ArtifactRow, EvaluationRow, JobRow, ModelRow


class Staged(NamedTuple):
    """A result that is in its place. `record` writes its rows, which is short, and answers with the result document.

    `folder` is what nobody needs where the record is refused; None where others may use it.
    """

    record: Callable[[Session], dict[str, Any]]
    folder: Path | None = None


def stage(settings: Settings, row: JobRow, output: Path, document: dict[str, Any]) -> Staged:
    """Verify what the job made and put it in its place. Touches no database.

    Raises ArtifactCorrupt where the output is not what its manifest says, OSError, and KeyError or ValueError where the document
    is not of the job's kind.
    """
    if row.kind == "optimize":
        return _artifact(settings, row, output, document)
    if row.kind == "evaluate":
        return _evaluation(settings, row, output, document)
    if row.kind == "import":
        return _model(row, document)
    return Staged(lambda _: document)


def withdraw(session: Session, staged: Staged) -> None:
    """Remove what was staged and is not to be, unless a row names it."""
    if staged.folder is not None and staged.folder.is_dir():
        rows = session.get(ArtifactRow, staged.folder.name), session.get(EvaluationRow, staged.folder.name)
        if not any(row is not None and row.path == str(staged.folder) for row in rows):
            folders.remove(staged.folder)


def _artifact(settings: Settings, row: JobRow, output: Path, document: dict[str, Any]) -> Staged:
    final = settings.artifacts / Path(str(document["artifact"])).name
    if output.exists():  # else an earlier supervisor published it and died before it could say so
        folders.verify(output, folders.read_manifest(output))
        folders.publish(output, final)
    manifest = folders.read_manifest(final)

    def record(session: Session) -> dict[str, Any]:
        session.merge(
            ArtifactRow(
                id=manifest.id, job_id=row.id, owner=row.owner, model=manifest.parent.id, recipe=manifest.recipe.name,
                recipe_hash=manifest.recipe_hash, path=str(final), bytes=manifest.bytes_after,
                manifest=manifest.model_dump_json(),
            )
        )  # fmt: skip
        models.used(session, manifest.parent)
        return {**document, "artifact": manifest.id, "path": str(final)}

    return Staged(record, final)


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
                id=identity, job_id=row.id, owner=row.owner, title=row.title, baseline=evaluation.variants[0].name,
                path=str(final), document=json.dumps(json.loads(text)),
            )
        )  # fmt: skip
        return {**document, "evaluation": identity, "path": str(final), "report": str(final / "report.html")}

    return Staged(record, final)


def _model(row: JobRow, document: dict[str, Any]) -> Staged:
    """The gathered folder becomes visible under its own name by one rename, and in the catalog; `model` is its card."""
    staged, final = Path(document["staged"]), Path(document["path"])
    if staged.exists():  # else it was there before, or an earlier supervisor published it and died before it could say so
        folders.publish(staged, final)
    card = ModelCard.model_validate(document["model"])
    found = ModelRow(path=str(final), name=card.id, owner=row.owner, licence=card.licence, card=card.model_dump_json())

    def record(session: Session) -> dict[str, Any]:
        kept = models.remember(session, found)
        rest = {name: value for name, value in document.items() if name != "staged"}
        return {**rest, "model": json.loads(kept.card), "name": kept.name}

    return Staged(record)
