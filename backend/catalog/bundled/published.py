"""The 73 models of the documentation page and the reference models beside them, from the bundled TOML and the published
matrix.

The matrix's cells are taken as the page has them, blanks too, and never derived from the facts. Knows nothing of
weights: no model here has a folder.
"""

from __future__ import annotations

import csv
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from backend.catalog.bundled import toml_tables
from backend.domain.errors import InvalidCatalog
from backend.domain.frozen import Frozen
from backend.domain.model.facts import Origin, PublishedCells, PublishedModel
from backend.settings import ASSETS

MODELS = ASSETS / "catalog" / "models.toml"
REFERENCE = ASSETS / "catalog" / "reference_models.toml"
MATRIX = ASSETS / "catalog" / "technique_matrix.csv"

MODEL_TYPES = {
    "BloomForCausalLM": "bloom",
    "CohereForCausalLM": "cohere",
    "FalconForCausalLM": "falcon",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
    "GemmaForCausalLM": "gemma",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "PhiForCausalLM": "phi",
}
"""`model_type` of config.json for each `architecture` of the data (transformers' own table)."""

COPIED_FIELDS = set(PublishedModel.model_fields) - {"sliding_window"}
"""Fields that a model takes from its row, if that has them; a window says nothing without the layers that have it."""

Size = Field(gt=0)


class _Row(Frozen):
    """A row as it is written, by the names of config.json, and as a model calls it."""

    model_config = ConfigDict(strict=True)

    jumpstart_id: str | None = Field(None, min_length=1)
    hf_repo: str = Field(min_length=1)
    family: str
    display_name: str
    provider: str
    license: str
    gated: bool
    task: Literal["text-generation", "chat", "code", "embedding", "guard"]
    architecture: str
    hidden_size: int = Size
    intermediate_size: int = Size
    layers: int = Field(gt=0, alias="num_hidden_layers")
    heads: int = Field(gt=0, alias="num_attention_heads")
    kv_heads: int = Field(gt=0, alias="num_key_value_heads")
    head_dim: int = Size
    vocabulary: int = Field(gt=0, alias="vocab_size")
    max_positions: int = Field(gt=0, alias="max_position_embeddings")
    tied_embeddings: bool = Field(alias="tie_word_embeddings")
    gated_mlp: bool
    dtype: Literal["bfloat16", "float16", "float32"]
    parameters: int = Size
    active_parameters: int | None = None
    published_parameters: int | None = None
    published_rounded: bool = False
    published_source: str | None = None
    published_for: str | None = None
    published_includes_buffers: int | None = None
    kv_bytes_per_token: int | None = None
    preoptimized: bool = False
    precompiled: bool = False
    draft: str | None = Field(None, alias="draft_model")
    draft_vocab_size: int | None = None
    draft_note: str | None = None
    sources: list[str] = Field(alias="facts_source")
    note: str | None = None
    linear_bias: bool | None = None
    lm_head_bias: bool | None = None
    positions: str | None = None
    parallel_attention: bool | None = None
    embedding_layer_norm: bool | None = None
    layer_norms_per_block: int | None = None
    stored_head: bool | None = Field(None, alias="checkpoint_has_lm_head")
    use_qk_norm: bool | None = None
    sliding_window: int | None = None
    extended_context: int | None = None
    experts: int | None = Field(None, alias="num_local_experts")
    experts_per_token: int | None = Field(None, alias="num_experts_per_tok")
    quantization: str | None = Field(None, alias="already_quantized")
    quantization_bits: int | None = None


def published(path: Path | None = None, matrix: Path | None = None) -> dict[str, PublishedModel]:
    """The rows of the page by their id, in its order. Raises InvalidCatalog."""
    models, cells = path or MODELS, matrix or MATRIX
    return _published(models, cells, _stamp(models), _stamp(cells))


def reference(path: Path | None = None) -> dict[str, PublishedModel]:
    """Models that the page does not list, by hub id: what the tutorial computes with, and the drafts. Raises
    InvalidCatalog."""
    return _reference(path or REFERENCE, _stamp(path or REFERENCE))


def digest() -> str:
    """sha256 over the files: another digest is another catalog. Raises InvalidCatalog where one cannot be read."""
    digest = hashlib.sha256()
    for path in (MODELS, MATRIX, REFERENCE):
        digest.update(_content(path, _stamp(path)))
    return digest.hexdigest()


_Stamp = tuple[int, int, int] | None


def _stamp(path: Path) -> _Stamp:
    """Return a value that changes with the file, without reading it; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


@lru_cache(maxsize=8)
def _content(path: Path, _stamp: _Stamp) -> bytes:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        raise InvalidCatalog(f"{path} cannot be read ({error.strerror}): restore the file.") from None


@lru_cache(maxsize=4)
def _published(path: Path, matrix: Path, _models: _Stamp, _matrix: _Stamp) -> dict[str, PublishedModel]:
    """Read once as long as the files stay as they are: the studio notices an edit without being started again."""
    cells = _cells(matrix)
    models = {}
    for row in toml_tables.read(path, "models", _Row, "jumpstart_id"):
        name = row.jumpstart_id
        if name is None or name not in cells:
            raise InvalidCatalog(
                f"{path.name}, row `{name or row.hf_repo}`: {matrix.name} has no such jumpstart_id; correct one."
            )
        models[name] = _model(path, row, name, "published", cells[name])
    return models


@lru_cache(maxsize=4)
def _reference(path: Path, _models: _Stamp) -> dict[str, PublishedModel]:
    rows = toml_tables.read(path, "models", _Row, "hf_repo")
    return {row.hf_repo: _model(path, row, row.hf_repo, "reference", None) for row in rows}


def find(name: str) -> PublishedModel | None:
    """Find a model by JumpStart id or hub id, in upper or lower case. Raises InvalidCatalog."""
    lowered = name.lower()
    for model in (*published().values(), *reference().values()):
        if lowered in {model.id.lower(), model.hf_repo.lower()}:
            return model
    return None


def _model(path: Path, row: _Row, name: str, origin: Origin, cells: PublishedCells | None) -> PublishedModel:
    if row.architecture not in MODEL_TYPES:
        raise InvalidCatalog(
            f"{path.name}, row `{name}`: the architecture `{row.architecture}` is unknown; correct it."
        )
    fields: dict[str, Any] = row.model_dump(include=COPIED_FIELDS)
    return PublishedModel(
        id=name,
        origin=origin,
        model_type=MODEL_TYPES[row.architecture],
        generates=row.task != "embedding",
        published=cells,
        **fields,
    )


def _cells(path: Path) -> dict[str, PublishedCells]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise InvalidCatalog(f"{path} cannot be read ({error.strerror}): restore the file.") from None
    cells = {}
    for number, row in enumerate(rows, 2):
        name = row.get("jumpstart_model_id") or ""
        if not name or name in cells:
            raise InvalidCatalog(
                f"{path.name}, line {number}: the id `{name}` is missing or appears twice; correct it."
            )
        try:
            cells[name] = PublishedCells.model_validate(
                {field: row.get(field) for field in PublishedCells.model_fields}
            )
        except ValueError:
            raise InvalidCatalog(
                f"{path.name}, line {number}: a cell of `{name}` is neither Yes, No nor blank; correct it."
            ) from None
    return cells
