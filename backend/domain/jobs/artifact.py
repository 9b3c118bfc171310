"""The manifest of an artifact: what it holds, byte for byte, and everything that made it.

An artifact is a folder: `model/` (weights, tokenizer, config), `draft/` and `compile_cache/` if the recipe has them,
and `manifest.json`. A trained draft has `draft/` alone. Nothing here reads disks; `backend.artifacts` writes and
verifies.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field

from backend.domain.evaluation.document import Variant
from backend.domain.frozen import Facts, Frozen
from backend.domain.model.facts import ModelCard
from backend.domain.recipe.recipe import Recipe
from backend.domain.recipe.serving_engines import artifact_id
from backend.domain.validation import read_stored

SCORES = (
    "perplexity",
    "perplexity_original",
    "kl_mean",
    "kl_ci95",
    "kl_median",
    "kl_p99",
    "kl_p999",
    "same_top",
    "same_top_ci95",
)
"""Figures of a scoring, by the names of an evaluation's `Quality`; a manifest calls the first two `perplexity_after`
and `perplexity_before`, and says besides `text`, `text_sha256`, `windows` and `tokens`."""


def artifact_of(variant: Variant) -> str | None:
    """Return the id of a variant's artifact; None for what is none, and for one that a job is still to make."""
    is_made = variant.kind == "artifact" and variant.source.startswith("a-")
    return artifact_id(variant.source) if is_made else None


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise ValueError("it must be inside the artifact")
    return path


class HeldContent(NamedTuple):
    """A content that nobody removes while the job that holds it lives. `arrived`: its bytes are there already."""

    address: str
    arrived: bool


class ArtifactFile(Frozen):
    path: Annotated[str, AfterValidator(_inside)]
    """Below the artifact's folder, with slashes."""
    size: int
    sha256: str


class Manifest(Frozen):
    """Frozen at publication. `parent` is the model that was optimized."""

    manifest_version: Literal[1] = 1
    created: datetime = Field(default_factory=lambda: datetime.now(UTC))
    job: str
    parent: ModelCard
    recipe: Recipe
    recipe_hash: str
    files: list[ArtifactFile]
    bytes_before: int
    bytes_after: int
    draft: ModelCard | None = None
    calibration: Facts | None = None
    quality: Facts | None = None
    layers: list[Facts] = Field(default_factory=list)
    """Per-layer relative error of quantized linears."""
    kept_16bit: list[dict[str, str]] = Field(default_factory=list)
    """Weights that stayed 16-bit: `name` and `why`."""
    bits: Facts | None = None
    """Present where groups of linears differ: `average_bits`, each group's precision with its measured loss at each,
    and the attempts that a quality floor took (`domain.fallback.record`)."""
    gguf: Facts | None = Field(None, exclude_if=lambda value: value is None)
    """Present where the weights are a GGUF file: `file`, its path below the artifact's folder, and `types`, the number
    of matrices by their type in it."""
    structure: Facts | None = Field(None, exclude_if=lambda value: value is None)
    """Present where whole parts were removed: the sizes `before` and `after`, the layers `removed`, and the
    `ranking`."""
    recovery: Facts | None = None
    """The fine-tune after pruning: its options, the loss curve, the quality before and after."""
    quantized_recovery: Facts | None = Field(None, exclude_if=lambda value: value is None)
    """The same after quantization."""
    training: Facts | None = None
    """The training of a draft, which is no variant of its parent: its options, its data and its figures
    (`engines.drafts.train`)."""
    versions: dict[str, str] = Field(default_factory=dict)
    hardware: Facts = Field(default_factory=dict)
    compile_key: Facts | None = None
    """Processor, vLLM and torch versions that the compile cache is good for; of a compilation for Neuron its plan's
    fields."""
    seed: int = 0
    peak_rss_bytes: int | None = None
    seconds: float | None = None

    @property
    def for_neuron(self) -> bool:
        """Return whether `compile_key` has the plan by which it was compiled for Neuron."""
        return any(file.path.startswith("compiled/") for file in self.files)

    @property
    def is_draft(self) -> bool:
        """Return whether it is for a recipe's speculate step, and cannot be served by itself."""
        return self.training is not None

    @property
    def lengths(self) -> tuple[float, ...]:
        """Return a draft's mean tokens per step at 1, 2, ... proposed, on greedy answers kept out of its training."""
        measured = (self.training or {}).get("acceptance", ())
        rates = next((row["by_position"] for row in measured if row["temperature"] == 0), ())
        return tuple(1 + reached for reached in accumulate(rates))

    @property
    def id(self) -> str:
        """Return `a-` and 12 hex digits of the sha256 over job and file hashes: it depends on content, not on time."""
        lines = sorted(f"{file.path} {file.sha256}" for file in self.files)
        return "a-" + hashlib.sha256(json.dumps([self.job, self.recipe_hash, lines]).encode()).hexdigest()[:12]


@lru_cache(maxsize=256)
def read_manifest(document: str) -> Manifest:
    """Return the manifest of that document. The same document is read once: pages read lists of artifacts often.

    Raises WrittenByNewer, Unreadable.
    """
    return read_stored(Manifest, document, "the artifact's manifest")
