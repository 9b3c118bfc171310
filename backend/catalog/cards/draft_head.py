"""Reads the card of a head: weights that propose tokens from another model's hidden states, in the forms that vLLM 0.32
loads.

A head has no tokenizer and generates no text by itself, so `card.read_card` refuses it. EAGLE and EAGLE-3 write a
decoder's config.json, Medusa its own, speculators nest the decoder's under `transformer_layer_config`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from backend.catalog.cards.card import CONFIG, CONFIG_BYTES
from backend.catalog.cards.source import FolderSource
from backend.catalog.cards.weights import bytes_by_dtype, read_object, read_weights
from backend.domain.errors import InvalidModel, UnknownModel
from backend.domain.model.facts import HeadOf, ModelCard

NESTED = "transformer_layer_config"
PROPOSES = {"eagle3": "midlayer.", "dflash": "hidden_norm.", "medusa": "blocks.", "eagle": "fc.weight"}
"""Tensors that tell the kind of a head if its architecture does not; the first match counts."""


def read_head(folder: Path, *, id: str | None = None) -> ModelCard:
    """The card of the head in `folder`: `head_of` says which hidden size and vocabulary it was trained for.

    Raises UnknownModel where there is no such folder, InvalidModel (one sentence) where it is no head.
    """
    # 1. Read config.json, whose fields may be nested, and the headers of the weights.
    if not folder.is_dir():
        raise UnknownModel(f"There is no folder {folder}: give the folder of a head, with config.json and safetensors.")
    source = FolderSource(folder.resolve())
    sizes = source.sizes()
    if CONFIG not in sizes:
        raise InvalidModel(f"{source.name} has no config.json: it is no head that a server could load.")
    config = read_object(source, CONFIG, CONFIG_BYTES)
    inner = config[NESTED] if isinstance(config.get(NESTED), dict) else config
    weights = read_weights(source, sizes)
    # 2. Sizes of the head, and of the target that it was trained for.
    hidden, vocabulary = _size(inner, "hidden_size"), _size(inner, "vocab_size")
    heads = _size(inner, "num_attention_heads", 1)
    reads = _size(config, "target_hidden_size", _size(inner, "target_hidden_size", hidden))
    kind = _kind(config, weights.tensors)
    own = _size(config, "draft_vocab_size", _size(config, "truncated_vocab_size", vocabulary))
    # 3. The card; a head counts as its own small model.
    return ModelCard(
        id=id or folder.name,
        path=str(folder.resolve()),
        origin="folder",
        head_of=HeadOf(hidden_size=reads, vocabulary=vocabulary, tokens=_tokens(config, kind)),
        architecture=_architecture(config),
        model_type=kind,
        gated_mlp=any("gate_proj" in name for name in weights.tensors),
        layers=_size(inner, "num_hidden_layers", 1),
        hidden_size=hidden,
        heads=heads,
        intermediate_size=_size(inner, "intermediate_size", hidden),
        kv_heads=_size(inner, "num_key_value_heads", heads),
        head_dim=_size(inner, "head_dim", hidden // heads),
        vocabulary=own,
        kv_layers=0 if inner.get("num_attention_heads") is None else None,
        max_positions=_size(inner, "max_position_embeddings", 2048),
        dtype=str(inner.get("dtype") or "bfloat16"),
        tied_embeddings=True,
        parameters=sum(info.elements for info in weights.tensors.values()),
        weights_bytes=weights.bytes,
        bytes_by_dtype=bytes_by_dtype(weights.tensors),
        tokenizer_hash=None,
        revision=hashlib.sha256(source.read(CONFIG) + weights.digest.encode()).hexdigest(),
    )


def _architecture(config: dict[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _kind(config: dict[str, Any], tensors: Collection[str]) -> str:
    """The method of a recipe that it is for; the `model_type` of a whole model."""
    described = f"{_architecture(config)} {config.get('model_type')} {config.get('speculators_model_type')}".lower()
    kind = next((kind for kind in ("eagle3", "dflash", "medusa") if kind in described), None)
    if kind is None:
        kind = next((kind for kind, part in PROPOSES.items() if any(name.startswith(part) for name in tensors)), None)
    return kind or str(config.get("model_type", ""))


def _tokens(config: dict[str, Any], kind: str) -> int | None:
    """Medusa has a head a token; whoever published one calls their number as he likes (vLLM's MedusaConfig)."""
    names = [name for name in config if "num" in name and "heads" in name] if kind == "medusa" else []
    return _size(config, names[0]) if names else None


def _size(config: dict[str, Any], name: str, default: int | None = None) -> int:
    """Read a size of config.json. Raises InvalidModel if it is missing or no size and there is no default."""
    value = config.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not int or not 0 < value < 2**31:
        raise InvalidModel(f"config.json has no usable `{name}`: it is no head that a server could load.")
    return value
