"""The calibration text of a recipe: uploaded in the browser and kept in the home, found by its path, and checked."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from backend import files
from backend.catalog.text import calibration_text
from backend.domain.errors import InvalidWorkload, WhetstoneError
from backend.domain.model.facts import ModelCard
from backend.domain.needs import recovery_needs
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Prune, Quantize, Recipe
from backend.domain.roles import Action
from backend.service import paths
from backend.service.jobs import quotas
from backend.service.models.models import MAX_SHOWN
from backend.service.workspace import Workspace

MAX_MB = calibration_text.MAX_BYTES // 1_000_000
LENGTH = int(Quantize.model_fields["length"].default)
"""Tokens a sequence where no step says it."""
TYPES = ("jsonl", "parquet", "txt")


def save(workspace: Workspace, name: str, content: bytes) -> Path:
    """The file in the home, as `calibration` of a recipe names it. The same content twice is one file.

    Raises InvalidWorkload with the first thing that is wrong, and then nothing is kept; ReadOnly in a demonstration.
    """
    # 1. Check size, quota and kind.
    workspace.check(Action.UPLOAD)
    if len(content) > calibration_text.MAX_BYTES:
        raise InvalidWorkload(f"{name} has more than {MAX_MB} MB: take a sample of it.")
    quotas.check_upload(workspace, len(content))
    suffix = Path(name).suffix.lower()
    if suffix.removeprefix(".") not in TYPES:
        raise InvalidWorkload(f"{name} is of no kind that can be read: give a file that ends in .{', .'.join(TYPES)}.")
    # 2. Name the file by its content.
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(name).stem).strip("-")[:60] or "text"
    folder = workspace.settings.home / "calibration"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{plain}-{hashlib.sha256(content).hexdigest()[:8]}{suffix}"
    # 3. Write it, once it was found readable.
    with workspace.changing(Action.UPLOAD, path.stem, detail="calibration"), files.staged_file(path) as staged:
        staged.write_bytes(content)
        try:
            calibration_text.check_unseen(name, calibration_text.texts(str(staged)))
        except WhetstoneError as error:
            raise InvalidWorkload(str(error).replace(staged.name, name)) from None
    return path


def check_file(model: ModelCard, recipe: Recipe) -> str | None:
    """The file that the recipe is calibrated with, once it was found good for it; None for the bundled text, or none at
    all.

    Raises InvalidWorkload where it is not there or will not do, InvalidModel where the tokenizer is another model's.
    """
    steps = [step for step in recipe.steps if isinstance(step, Quantize | Prune)]
    if not steps or not quantize_step.reads_text(recipe):
        return None
    # The text must hold sequences of the longest length that a step reads.
    file = find_file(recipe)
    length = max(step.length if isinstance(step, Quantize) else LENGTH for step in steps)
    length = min(length, model.max_positions)
    calibration_text.check(file, Path(model.path), length)
    # Recovery validates on what calibration leaves over.
    if recovery_needs.find_recoveries(recipe):
        calibration_text.check_spare(file, Path(model.path), *recovery_needs.calibration_size(recipe))
    return file


def find_file(recipe: Recipe) -> str | None:
    """The path of the file that the recipe names; None for the bundled text, and where none is read.

    Raises InvalidWorkload where it is not there.
    """
    if not quantize_step.reads_text(recipe):
        return None
    named = [
        step.calibration
        for step in recipe.steps
        if isinstance(step, Quantize | Prune) and step.calibration != "bundled"
    ]
    path = paths.find_file(named[0]) if named else None
    if named and path is None:
        shown = named[0][:MAX_SHOWN]
        raise InvalidWorkload(
            f"There is no calibration file `{shown}`: give a JSONL, Parquet or text file, or leave it out."
        )
    return str(path) if path else None
