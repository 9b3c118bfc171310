"""The model card: architecture facts read from config.json and the safetensors headers, never guessed.

`ModelFacts` is what compatibility and estimates need; `ModelCard` adds the folder, for a model whose weights are at
hand; `PublishedModel` adds what a documentation page says of a model whose weights are not. Knows nothing of files,
hubs or weights; `catalog.card` and `catalog.published` fill them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from backend.domain.frozen import Frozen
from backend.domain.model.stored_weights import StoredWeights

Origin = Literal["starter", "imported", "folder", "artifact", "published", "reference"]
"""`published`: a row of the documentation page. `reference`: other bundled facts, such as the drafts of those rows."""

Cell = Literal["Yes", "No", ""]
"""A cell of the published technique matrix; a blank stays blank."""

ASSUMED_CONTEXT = 2048
"""The context that vLLM 0.32 assumes if config.json and the class state none (BLOOM's positions are relative)."""

NO_TOKENS = "an embedding model generates no tokens"


class ModelFacts(Frozen):
    """Facts of one architecture. Sizes in elements."""

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
    """Quantization of the stored weights, under its announced name, else the stored layout's; None for plain
    weights."""
    quantization_bits: int | None = None
    draft: str | None = None
    """Model id or path of the provided draft, where one exists."""
    experts: int | None = None
    """Experts a layer of a mixture; None for a dense model."""
    experts_per_token: int | None = None
    gated_mlp: bool | None = None
    """Three matrices in the MLP (gate, up, down) and not two; None where it is not known."""
    stored_head: bool | None = None
    """The checkpoint holds an output head although it is tied to the embedding (Falcon); None: as `tied_embeddings`
    says."""
    generates: bool = True
    """False for an embedding model: it produces no tokens."""
    kv_latent: int | None = None
    """Multi-head latent attention caches one vector of this width per token and layer instead of keys and values:
    kv_lora_rank + qk_rope_head_dim (DeepSeek-V2, 2024, section 2.1)."""
    kv_layers: int | None = None
    """Layers that keep a cache; None: all. A hybrid's other layers keep a state of fixed size, which is not counted."""
    sliding_window: int | None = None
    """Tokens that the `sliding_layers` look back on."""
    sliding_layers: int = 0
    expert_parameters: int | None = None
    """Parameters of all routed experts, if counted."""
    outside_parameters: int = 0
    """Parameters of a multimodal model's other parts (vision tower, projector): in memory, but not in the decoder."""
    gguf_kept: bool = Field(False, exclude_if=lambda value: not value)
    """The GGUF file that the model was imported from is still beside it, so that llama.cpp can serve it."""
    gguf_bytes: int = Field(0, exclude_if=lambda value: not value)
    """Size of that file, all its parts; 0 where it is not known."""

    @property
    def kv_bytes_per_token(self) -> int:
        """16-bit cache of one token within every window: `kv_width` x layers x 2 bytes."""
        return self.kv_width * self.cached_layers * 2

    @property
    def cached_layers(self) -> int:
        return self.layers if self.kv_layers is None else self.kv_layers

    @property
    def kv_width(self) -> int:
        """Elements per token and layer: 2 x KV heads x head_dim, or the latent vector."""
        return self.kv_latent or 2 * self.kv_heads * self.head_dim

    def kv_bytes_of(self, tokens: int) -> int:
        """16-bit cache of one sequence: layers with a sliding window keep no more than the window."""
        sliding = min(self.sliding_layers, self.cached_layers) if self.sliding_window else 0
        positions = (self.cached_layers - sliding) * tokens + sliding * min(tokens, self.sliding_window or 0)
        return self.kv_width * positions * 2


class QuantizedBefore(Frozen):
    """Earlier quantization of weights that are 16-bit now: the precision lost then stays lost."""

    format: str
    """The format as its file names it: Q4_1."""
    block: int
    """Weights that share a scale."""
    bits: float
    """A weight, scales included."""

    @property
    def sentence(self) -> str:
        return (
            f"Its weights were quantized to {self.format} (blocks of {self.block}, {self.bits:g} bits a weight) "
            "before they came here: what is called the original is not the model as it was trained."
        )


class HeadOf(Frozen):
    """The target that a head was trained for."""

    hidden_size: int
    vocabulary: int
    tokens: int | None = None
    """Tokens it can propose at once if it has a matrix for each; None: any number."""


class ModelCard(ModelFacts):
    """One model whose weights are in `path`. `weights_bytes` is the size of its weight files."""

    path: str
    revision: str
    """sha256 over config.json and the weight files' names, sizes and headers."""
    weights_bytes: int
    tokenizer_hash: str | None
    """sha256 over the sorted (token, id) pairs: two models that can share a draft have the same. None: not read yet."""
    bytes_by_dtype: dict[str, int] = Field(default_factory=dict)
    """Bytes of the tensors by stored dtype, in the names of safetensors (BF16, I32)."""
    licence: str | None = None
    """Licence as the hub states it; None if it states none."""
    quantized_before: QuantizedBefore | None = None
    """None where the weights came as they were trained, as far as is known."""
    stored: StoredWeights | None = Field(None, exclude_if=lambda value: value is None)
    """Storage of the weights if they are not plain 16- or 32-bit floats."""
    head_of: HeadOf | None = Field(None, exclude_if=lambda value: value is None)
    """The target of a head that drafts from another model's hidden states; the head's vocabulary may be smaller."""
    notes: tuple[str, ...] = ()
    """Sentences on what in the card differs from config.json."""

    @property
    def is_gguf_file(self) -> bool:
        """Tell whether the card is of a GGUF file before its import, whose weights are then converted."""
        return self.path.lower().endswith(".gguf")

    def __hash__(self) -> int:
        """Hash what identifies a card; `bytes_by_dtype` has no hash."""
        return hash((self.path, self.revision))


class PublishedCells(Frozen):
    """A row of the published technique matrix, exactly as the page has it."""

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
