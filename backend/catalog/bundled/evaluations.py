"""Evaluations that come with Whetstone, by model and recipe: those of the demonstration, and those of the starter
model.

Each folder holds artifacts.json and evaluations.json as `service.studio.demo_export` writes them. The recipe of a
variant is read from the manifest of its artifact, so that its hash is that of today's code. Knows nothing of presets.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from backend.domain.errors import InvalidCatalog
from backend.domain.evaluation.document import Evaluation
from backend.domain.jobs.artifact import Manifest
from backend.domain.what_if.slice_means import with_slice_means
from backend.settings import ASSETS

FOLDERS = (ASSETS / "demo" / "amd-epyc", ASSETS / "catalog" / "measured")


class Bundled(NamedTuple):
    """`recipes` are the hashes of the variants' recipes by the variant's source; a source without one was not
    optimized."""

    id: str
    model: str
    document: Evaluation
    recipes: dict[str, str]


@lru_cache(maxsize=4)
def load(folders: tuple[Path, ...] = FOLDERS) -> tuple[Bundled, ...]:
    """Latest first, each once. Raises InvalidCatalog where a file was edited wrongly."""
    evaluations = {bundled.id: bundled for folder in folders for bundled in _read_folder(folder)}
    return tuple(sorted(evaluations.values(), key=lambda bundled: bundled.document.measured_at, reverse=True))


def _read_folder(folder: Path) -> list[Bundled]:
    artifacts, evaluations = (_rows(folder / f"{name}.json") for name in ("artifacts", "evaluations"))
    try:
        recipes = {row["id"]: Manifest.model_validate(row["manifest"]).recipe.hash for row in artifacts}
        return [_bundled(row, recipes) for row in evaluations]
    except (KeyError, TypeError, ValidationError):
        raise InvalidCatalog(f"A file in {folder} was edited wrongly: restore the folder.") from None


def _bundled(row: dict[str, Any], recipes: dict[str, str]) -> Bundled:
    document = with_slice_means(Evaluation.model_validate(row["document"]))
    own = {result.variant.source for result in document.variants}
    return Bundled(
        row["id"], row["baseline"], document, {source: hash for source, hash in recipes.items() if source in own}
    )


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InvalidCatalog(f"{path} cannot be read: restore the file.") from None
    return rows
