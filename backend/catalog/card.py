"""Reads a model folder's card: config.json, the safetensors headers and the tokenizer, and nothing else.

No weight is loaded and no code of the folder runs. Knows nothing of hubs, the store or engines.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from backend.catalog import safetensors_header
from backend.catalog.safetensors_header import TensorInfo
from backend.catalog.tokenizer_hash import tokenizer_hash
from backend.domain.errors import InvalidModel, UnknownModel
from backend.domain.model import ModelCard, Origin

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NOT_PARAMETERS = ("_scale", "_zero_point", "_shape", "_g_idx", ".scales", ".qzeros", ".g_idx")
PACKED = ("weight_packed", "qweight")
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


class _Weights(NamedTuple):
    tensors: dict[str, TensorInfo]
    bytes: int
    digest: str


def read_card(folder: Path, *, id: str | None = None, origin: Origin = "folder") -> ModelCard:
    """The card of the model in `folder`; `id` defaults to the folder's name.

    Raises UnknownModel when there is no such folder, InvalidModel (one sentence) when it is not a sound model:
    config.json, tokenizer and safetensors weights that agree with each other.
    """
    if not folder.is_dir():
        raise UnknownModel(f"There is no folder {folder}: give a model folder, or an id that `whetstone catalog list` shows.")
    config = _config(folder)
    facts = _architecture(config)
    weights = _weights(folder)
    _check_agreement(facts, weights.tensors)
    quantization = config.get("quantization_config")
    return ModelCard(
        id=id or folder.resolve().name,
        path=str(folder.resolve()),
        origin=origin,
        revision=hashlib.sha256((folder / "config.json").read_bytes() + weights.digest.encode()).hexdigest(),
        dtype=_dtype(config, weights.tensors),
        parameters=_parameters(weights.tensors, bool(facts["tied_embeddings"]), quantization),
        weights_bytes=weights.bytes,
        quantization=_quant_method(quantization),
        tokenizer_hash=tokenizer_hash(folder),
        **facts,
    )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise InvalidModel(f"{folder} has no config.json: it is not a model folder.")
    return read_object(path)


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; InvalidModel when the file is unreadable, not JSON, or not an object."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidModel(f"{path.name} cannot be read ({error.strerror}): check its permissions.") from None
    except (ValueError, RecursionError):
        raise InvalidModel(f"{path.name} is not valid JSON: download or export the model again.") from None
    if not isinstance(document, dict):
        raise InvalidModel(f"{path.name} is not a JSON object: download or export the model again.")
    return document


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
    }


def _size(config: dict[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise InvalidModel(f"config.json has no usable `{field}`: it must be a whole number above 0.")
    return value


def _weights(folder: Path) -> _Weights:
    tensors: dict[str, TensorInfo] = {}
    digest, total = hashlib.sha256(), 0
    index = _index(folder)
    for path in _weight_files(folder, index):
        found, raw = safetensors_header.parse(path)
        total += path.stat().st_size
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + raw)
        tensors |= found
    missing = sorted(set(index or tensors) - set(tensors))
    if missing:
        raise InvalidModel(f"{INDEX} lists {missing[0]!r}, which no weight file holds: download the model again.")
    if not tensors:
        raise InvalidModel(f"The safetensors files of {folder} hold no tensors: download or export the model again.")
    return _Weights(tensors, total, digest.hexdigest())


def _index(folder: Path) -> dict[str, str] | None:
    """Tensor name -> shard name, or None where the weights are one file."""
    if not (folder / INDEX).is_file():
        return None
    shards = read_object(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise InvalidModel(f"{INDEX} has no usable `weight_map`: download or export the model again.")
    return shards


def _weight_files(folder: Path, index: dict[str, str] | None) -> list[Path]:
    if index is None:
        if not (folder / SINGLE).is_file():
            raise _no_weights(folder)
        return [folder / SINGLE]
    shards = sorted(set(index.values()))
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise InvalidModel(f"{INDEX} names {shard!r}, which is not a safetensors file of the folder.")
        if not (folder / shard).is_file():
            raise InvalidModel(f"{INDEX} names {shard}, which is not in {folder}: download the missing file.")
    return [folder / shard for shard in shards]


def _no_weights(folder: Path) -> InvalidModel:
    pickled = sorted(path.name for pattern in PICKLED for path in folder.glob(pattern))
    if pickled:
        return InvalidModel(f"{pickled[0]} holds pickled weights, which can run code when loaded: convert it to safetensors.")
    if any(folder.glob("*.safetensors")):
        return InvalidModel(f"{folder} has safetensors files but neither {SINGLE} nor {INDEX}: download the missing file.")
    return InvalidModel(f"{folder} holds no safetensors weights: it needs {SINGLE}, or shards with {INDEX}.")


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
