"""The model card: architecture facts read from config.json and the safetensors headers, never guessed.

`ModelFacts` is what compatibility and estimates need; `ModelCard` adds the folder, for a model whose weights are at hand;
`PublishedModel` adds what a documentation page says of a model whose weights are not. Knows nothing of files, hubs or weights;
`catalog.card` and `catalog.published` fill them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Origin = Literal["starter", "imported", "folder", "artifact", "published", "reference"]
"""`published`: a row of the documentation page. `reference`: other bundled facts, such as the drafts of those rows."""

Cell = Literal["Yes", "No", ""]
"""A cell of the published technique matrix; a blank stays blank."""


class ModelFacts(BaseModel):
    """One architecture. Sizes in elements."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    id: str
    origin: Origin
    architecture: str
    model_type: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    dtype: str
    tied_embeddings: bool
    parameters: int
    quantization: str | None = None
    """`quant_method` of config.json where the weights are already quantized."""
    quantization_bits: int | None = None
    draft: str | None = None
    """Model id or path of the provided draft, where one exists."""
    experts: int | None = None
    """Experts a layer of a mixture; None for a dense model."""
    experts_per_token: int | None = None
    gated_mlp: bool | None = None
    """Three matrices in the MLP (gate, up, down) and not two; None where it is not known."""
    stored_head: bool | None = None
    """The checkpoint holds an output head although it is tied to the embedding (Falcon); None: as `tied_embeddings` says."""
    generates: bool = True
    """False for an embedding model: it produces no tokens."""

    @property
    def kv_bytes_per_token(self) -> int:
        """16-bit keys and values of one token: 2 x layers x KV heads x head_dim x 2 bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


class ModelCard(ModelFacts):
    """One model whose weights are in `path`. `weights_bytes` is the size of its weight files."""

    path: str
    revision: str
    """sha256 over config.json and the weight files' names, sizes and headers."""
    weights_bytes: int
    tokenizer_hash: str | None
    """sha256 over the sorted (token, id) pairs: two models that can share a draft have the same. None: not read yet."""
    bytes_by_dtype: dict[str, int] = {}
    """Bytes of the tensors by the dtype they are stored in, in the names of safetensors (BF16, I32)."""
    licence: str | None = None
    """As the hub states it; None where nothing is said."""


class PublishedCells(BaseModel):
    """A row of the published technique matrix, exactly as the page has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    quantization: Cell
    speculative_decoding: Cell
    speculative_decoding_with_provided_draft: Cell


class PublishedModel(ModelFacts):
    """A model known by bundled facts alone. `published` is None for a reference model, which no page lists."""

    family: str
    display_name: str
    hf_repo: str
    provider: str
    license: str
    gated: bool
    task: str
    published: PublishedCells | None = None
    preoptimized: bool = False
    precompiled: bool = False
    sources: tuple[str, ...] = ()
    note: str | None = None
