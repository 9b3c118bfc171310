"""Reads a model's card: config.json, the safetensors headers and the tokenizer, and nothing else.

No weight is loaded and no code of the model runs. Knows nothing of hubs, the store or engines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backend.catalog import record
from backend.catalog.safetensors_header import TensorInfo
from backend.catalog.source import FolderSource, ModelSource, RemoteSource
from backend.catalog.tokenizer_hash import FILES as TOKENIZER_FILES
from backend.catalog.tokenizer_hash import tokenizer_hash
from backend.catalog.weights import Weights, bytes_by_dtype, read_object, read_weights
from backend.domain.errors import InvalidModel, UnknownModel
from backend.domain.model import ModelCard, Origin

CONFIG = "config.json"
NOT_PARAMETERS = ("_scale", "_zero_point", "_shape", "_g_idx", ".scales", ".qzeros", ".g_idx")
PACKED = ("weight_packed", "qweight")
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""What the families call the number of experts a layer."""


def read_card(folder: Path, *, id: str | None = None, origin: Origin = "folder") -> ModelCard:
    """The card of the model in `folder`; `id` defaults to what it was imported as, else to the folder's name.

    Raises UnknownModel when there is no such folder, InvalidModel (one sentence) when it is not a sound model:
    config.json, tokenizer and safetensors weights that agree with each other.
    """
    if not folder.is_dir():
        raise UnknownModel(f"There is no folder {folder}: give a model folder, or an id that `whetstone catalog list` shows.")
    folder = folder.resolve()
    said: dict[str, Any] = {"id": id or folder.name, "origin": origin}
    imported = record.read(folder)
    if imported is not None:
        said = {"id": id or imported.card_id, "origin": "imported", "licence": imported.licence}
    facts = _facts(FolderSource(folder))
    return ModelCard(path=str(folder), tokenizer_hash=tokenizer_hash(folder), **said, **facts)


def read_remote_card(source: RemoteSource) -> ModelCard:
    """The card of a model elsewhere, from ranges of its files. The tokenizer, often larger than all headers, is not read.

    Raises InvalidModel as `read_card` does, SourceDropped and what the source raises.
    """
    facts = _facts(source)
    card_id = record.card_id(source.id, source.revision)
    return ModelCard(id=card_id, path=source.name, origin="imported", tokenizer_hash=None, licence=source.licence, **facts)


def _facts(source: ModelSource) -> dict[str, Any]:
    """All that config.json and the headers say."""
    sizes = source.sizes()
    if CONFIG not in sizes:
        raise InvalidModel(f"{source.name} has no config.json: it is not a model folder.")
    config = read_object(source, CONFIG)
    facts = _architecture(config)
    if not any(name in sizes for name in TOKENIZER_FILES):
        raise InvalidModel(f"{source.name} has no tokenizer: put its tokenizer.json beside config.json.")
    weights = read_weights(source, sizes)
    _check_agreement(facts, weights.tensors)
    quantization = config.get("quantization_config")
    return {
        **facts,
        "revision": _revision(source, weights),
        "dtype": _dtype(config, weights.tensors),
        "parameters": _parameters(weights.tensors, bool(facts["tied_embeddings"]), quantization),
        "weights_bytes": weights.bytes,
        "bytes_by_dtype": bytes_by_dtype(weights.tensors),
        "quantization": _quant_method(quantization),
    }


def _revision(source: ModelSource, weights: Weights) -> str:
    return hashlib.sha256(source.read(CONFIG) + weights.digest.encode()).hexdigest()


def _architecture(config: dict[str, Any]) -> dict[str, Any]:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise InvalidModel("config.json names no architecture (`architectures`): whetstone cannot tell what model this is.")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise InvalidModel("config.json has no `model_type`: whetstone cannot tell what model this is.")
    heads, hidden = _size(config, "num_attention_heads"), _size(config, "hidden_size")
    return {
        "architecture": names[0],
        "model_type": model_type,
        "layers": _size(config, "num_hidden_layers"),
        "hidden_size": hidden,
        "intermediate_size": _size(config, "intermediate_size"),
        "heads": heads,
        "kv_heads": _size(config, "num_key_value_heads", heads),
        "head_dim": _size(config, "head_dim", hidden // heads),
        "vocabulary": _size(config, "vocab_size"),
        "max_positions": _size(config, "max_position_embeddings"),
        "tied_embeddings": config.get("tie_word_embeddings") is True,
        **_experts(config),
    }


def _experts(config: Mapping[str, Any]) -> dict[str, int | None]:
    """Experts a layer and a token; None for a dense model, whose config may say 0 or 1."""
    found = [config[field] for field in EXPERTS if type(config.get(field)) is int and config[field] > 1]
    a_token = config.get("num_experts_per_tok")
    return {
        "experts": found[0] if found else None,
        "experts_per_token": a_token if found and type(a_token) is int and a_token > 0 else None,
    }


def _size(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise InvalidModel(f"config.json has no usable `{field}`: it must be a whole number above 0.")
    return value


def _check_agreement(facts: dict[str, Any], tensors: dict[str, TensorInfo]) -> None:
    """Config and weights must describe one model; tensors under other names than Llama's are not judged."""
    embedding = tensors.get("model.embed_tokens.weight")
    if embedding and embedding.shape != (facts["vocabulary"], facts["hidden_size"]):
        raise InvalidModel(
            f"config.json says vocabulary {facts['vocabulary']} and hidden size {facts['hidden_size']}, but the embedding "
            f"is {' x '.join(map(str, embedding.shape))}: config.json and the weights belong to different models."
        )
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    if layers and layers != {str(number) for number in range(facts["layers"])}:
        raise InvalidModel(
            f"config.json says {facts['layers']} layers, but the weights hold {len(layers)}: "
            "config.json and the weights belong to different models, or a shard is missing."
        )


def _parameters(tensors: dict[str, TensorInfo], tied: bool, quantization: Any) -> int:
    """Elements of all weights: tied embeddings once, packed integers unpacked, scales and zero points left out."""
    per_word = 32 // _packed_bits(quantization)
    total = 0
    for name, info in tensors.items():
        if name.endswith(NOT_PARAMETERS) or (tied and name == "lm_head.weight"):
            continue
        total += info.elements * (per_word if name.endswith(PACKED) and info.dtype == "I32" else 1)
    return total


def _packed_bits(quantization: Any) -> int:
    """Bits of one packed weight, as quantization_config says (compressed-tensors: config_groups; awq, gptq: bits); else 4."""
    if not isinstance(quantization, dict):
        return 4
    groups = quantization.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = group.get("weights") if isinstance(group, dict) else None
    bits = weights.get("num_bits") if isinstance(weights, dict) else quantization.get("bits", quantization.get("w_bit"))
    return bits if type(bits) is int and bits in {1, 2, 3, 4, 8, 16} else 4


def _quant_method(quantization: Any) -> str | None:
    if quantization is None:
        return None
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if not isinstance(method, str):
        raise InvalidModel("config.json has a `quantization_config` without a `quant_method`: export the model again.")
    return method


def _dtype(config: dict[str, Any], tensors: dict[str, TensorInfo]) -> str:
    """What config.json says (`dtype`, before transformers 5 `torch_dtype`), else the type most elements have."""
    said = config.get("dtype") or config.get("torch_dtype")
    if isinstance(said, str):
        return said
    counts: dict[str, int] = {}
    for info in tensors.values():
        counts[info.dtype] = counts.get(info.dtype, 0) + info.elements
    most = max(counts, key=lambda dtype: (counts[dtype], dtype))
    return DTYPES.get(most, most.lower())
