"""Request and result of a structured pruning. Knows no model and no algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.needs.job_memory import SPILL_BYTES
from backend.domain.needs.recovery_needs import LENGTH, SAMPLES
from backend.domain.needs.structure import Structure
from backend.domain.recipe.methods import Importance


class CutRequest(Frozen):
    """One structured pruning of the model in `model_dir` to the sizes of `structure`."""

    model_dir: Path
    out_dir: Path
    """Must not exist yet, or be empty."""
    method: Literal["depth", "width", "experts"]
    structure: Structure
    importance: Importance = "similarity"
    """depth: the ranking of layers; width: `gradients`, or by activations alone."""
    calibration_texts: list[str]
    samples: int = Field(SAMPLES, ge=1)
    """Sequences; fewer are used where the text holds fewer."""
    length: int = Field(LENGTH, ge=8)
    """Tokens a sequence."""
    seed: int = 0
    devices: tuple[str, ...] = Field(("cpu",), min_length=1)
    work_dir: Path | None = None
    """Folder of scratch files, removed at the end; None: one beside `out_dir`."""
    spill_bytes: int = Field(SPILL_BYTES, ge=0)


class CutResult(Frozen):
    """The result, for the manifest."""

    before: Structure
    after: Structure
    removed: list[int] = Field(default_factory=list)
    """depth: the numbers of the layers that were removed, in order."""
    ranking: list[dict[str, Any]] = Field(default_factory=list)
    """`name` and `importance` of each part that could be removed, and `removed`."""
    layers: list[dict[str, Any]] = Field(default_factory=list)
    """width: `name` and `relative_error` of each matrix that was fitted, and `removed`, its columns that went."""
    linears: tuple[str, ...] = ()
    """Matrices of the result's layers, as its checkpoint names their modules."""
    calibration: dict[str, Any]
    """`samples`, `length`, `tokens`, `sha256` (of the token ids)."""
    versions: dict[str, str]
    bytes_before: int
    bytes_after: int
    """Sizes of the weight files."""
