"""The model card: architecture facts read from config.json and the safetensors headers, never guessed.

Knows nothing of files, hubs or weights; `catalog.card` fills it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Origin = Literal["starter", "imported", "folder", "artifact", "published"]


class ModelCard(BaseModel):
    """One model. Sizes in elements, `weights_bytes` in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    id: str
    path: str
    origin: Origin
    revision: str
    """sha256 over config.json and the weight files' names, sizes and headers."""
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
    weights_bytes: int
    quantization: str | None = None
    """`quant_method` of config.json where the weights are already quantized."""
    bytes_by_dtype: dict[str, int] = {}
    """Bytes of the tensors by the dtype they are stored in, in the names of safetensors (BF16, I32)."""
    experts: int | None = None
    """Experts a layer of a mixture; None for a dense model."""
    experts_per_token: int | None = None
    licence: str | None = None
    """As the hub states it; None where nothing is said."""
    tokenizer_hash: str | None
    """sha256 over the sorted (token, id) pairs: two models that can share a draft have the same. None: not read yet."""
    draft: str | None = None
    """Model id or path of the provided draft, where one exists."""

    @property
    def kv_bytes_per_token(self) -> int:
        """16-bit keys and values of one token: 2 x layers x KV heads x head_dim x 2 bytes."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2
