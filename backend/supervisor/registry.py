"""What happens to a job's result: an artifact is verified and published, an evaluation is filed, the row is closed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sqlmodel import Session

from backend.artifacts import folders
from backend.domain.evaluation.document import read_evaluation
from backend.domain.model.facts import ModelCard
from backend.settings import Settings
from backend.store import models
from backend.store.tables import ArtifactRow, EvaluationRow, JobRow, ModelRow


def register(session: Session, settings: Settings, row: JobRow, output: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Store what the job made and answer with the result document for its row.

    Raises ArtifactCorrupt where the output is not what its manifest says.
    """
    if row.kind == "optimize":
        return _register_artifact(session, settings, row, output, document)
    if row.kind == "evaluate":
        return _register_evaluation(session, settings, row, output, document)
    if row.kind == "import":
        return _register_model(session, row, document)
    return document


def _register_artifact(
    session: Session, settings: Settings, row: JobRow, output: Path, document: dict[str, Any]
) -> dict[str, Any]:
    final = settings.artifacts / str(document["artifact"])
    if output.exists():  # else an earlier supervisor published it and died before it could say so
        folders.verify(output, folders.read_manifest(output))
        folders.publish(output, final)
    manifest = folders.read_manifest(final)
    session.merge(
        ArtifactRow(
            id=manifest.id,
            job_id=row.id,
            model=manifest.parent.id,
            recipe=manifest.recipe.name,
            recipe_hash=manifest.recipe_hash,
            path=str(final),
            bytes=manifest.bytes_after,
            manifest=manifest.model_dump_json(),
        )
    )
    models.used(session, manifest.parent)
    return {**document, "artifact": manifest.id, "path": str(final)}


def _register_evaluation(
    session: Session, settings: Settings, row: JobRow, output: Path, document: dict[str, Any]
) -> dict[str, Any]:
    identity = "e-" + row.id.removeprefix("j-") + ("" if row.attempt == 1 else f"-{row.attempt}")
    final = settings.evaluations / identity
    final.parent.mkdir(parents=True, exist_ok=True)
    if output.exists():
        read_evaluation((output / "evaluation.json").read_bytes())
        shutil.rmtree(final, ignore_errors=True)
        output.rename(final)
    evaluation = read_evaluation((final / "evaluation.json").read_bytes())
    session.merge(
        EvaluationRow(
            id=identity,
            job_id=row.id,
            title=row.title,
            baseline=evaluation.variants[0].name,
            path=str(final),
            document=json.dumps(json.loads((final / "evaluation.json").read_bytes())),
        )
    )
    return {**document, "evaluation": identity, "path": str(final), "report": str(final / "report.html")}


def _register_model(session: Session, row: JobRow, document: dict[str, Any]) -> dict[str, Any]:
    """The gathered folder becomes visible under its own name by one rename, and in the catalog; `model` is its card."""
    staged, final = Path(document.pop("staged")), Path(document["path"])
    if staged.exists():  # else it was there before, or an earlier supervisor published it and died before it could say so
        folders.publish(staged, final)
    card = ModelCard.model_validate(document["model"])
    found = ModelRow(path=str(final), name=card.id, owner=row.owner, licence=card.licence, card=card.model_dump_json())
    kept = models.remember(session, found)
    return {**document, "model": json.loads(kept.card), "name": kept.name}
