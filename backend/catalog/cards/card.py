"""Reads a model's card: config.json, the safetensors headers and the tokenizer, and nothing else.

No weight is loaded and no code of the model runs. Knows nothing of hubs, the store or engines.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from backend.catalog.cards import config as configuration
from backend.catalog.cards import gguf, gguf_parts, import_record
from backend.catalog.cards.safetensors_header import TensorInfo
from backend.catalog.cards.source import FolderSource, ModelSource, RemoteSource
from backend.catalog.cards.tokenizer_hash import FILES as TOKENIZER_FILES
from backend.catalog.cards.tokenizer_hash import tokenizer_hash
from backend.catalog.cards.weights import bytes_by_dtype, read_object, read_weights
from backend.domain.errors import InvalidModel, UnknownModel
from backend.domain.model import announced_quantization
from backend.domain.model.facts import ModelCard, Origin
from backend.domain.model.path_names import path_name
from backend.domain.model.stored_weights import TRANSPOSED
from backend.domain.recipe.capability_table import NATIVE_FAMILIES

CONFIG, CONFIG_BYTES = "config.json", 4_000_000
ADAPTER = "adapter_config.json"
"""PEFT's, beside the weights of an adapter."""
NOT_PARAMETERS = (
    "_scale",
    "_scale_inv",
    "_scales",
    "_zero_point",
    "_shape",
    "_g_idx",
    ".scales",
    ".qzeros",
    ".g_idx",
    ".inv_freq",
    ".masked_bias",
    ".e_score_correction_bias",
)
PACKED = ("weight_packed", "qweight")
HALVES = ("_blocks", "weight_packed")
"""FP4 keeps two weights in a byte."""
HEADS = ("lm_head.weight", "embed_out.weight")
HEAD_MODULES = ("lm_head.", "embed_out.")
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
GATED = re.compile(r"\.(gate_proj|gate_up_proj|w3|up_gate_proj)(\.|_|$)")
TEXT_PART = re.compile(r"(^|\.)(language_model|text_model|lm_head)\.|^(model\.)?(layers|embed_tokens|norm)\.")
"""Names of the tensors of a multimodal model's text part."""
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


def read_card(
    folder: Path, *, id: str | None = None, origin: Origin = "folder", as_imported: bool = False
) -> ModelCard:
    """The card of the model in `folder`; `id` defaults to `path_name`.

    `as_imported`: Whetstone itself made the folder, so that name, origin and licence are those of its import record.
    The record of any other folder says only that the weights were quantized before, which is a warning.

    Raises UnknownModel when there is no such folder, InvalidModel (one sentence) when it is not a sound model:
    config.json, tokenizer and safetensors weights that agree with each other.
    """
    if not folder.is_dir():
        raise UnknownModel(
            f"There is no folder {folder}: give a model folder, or an id that `whetstone catalog list` shows."
        )
    # 1. Name and origin: those of the import record if Whetstone made the folder.
    folder = folder.resolve()
    origin_fields: dict[str, Any] = {"id": id or path_name(folder), "origin": origin}
    imported = import_record.read(folder)
    if imported is not None and as_imported:
        origin_fields = {"id": id or imported.card_id, "origin": "imported", "licence": imported.licence}
    # 2. Facts from the files, with a warning if the weights were quantized before.
    original = gguf.find_original(folder)
    facts = _facts(FolderSource(folder)) | {"gguf_kept": original is not None}
    facts["gguf_bytes"] = gguf.size_of_parts(original) if original else 0
    if imported is not None and imported.quantized_before is not None:
        before = imported.quantized_before
        origin_fields |= {"quantized_before": before}
        facts["notes"] = (*facts["notes"], before.sentence)
    return ModelCard(path=str(folder), tokenizer_hash=tokenizer_hash(folder), **origin_fields, **facts)


def read_remote_card(source: RemoteSource) -> ModelCard:
    """The card of a model elsewhere, from ranges of its files. The tokenizer, often larger than all headers, is not
    read.

    Raises InvalidModel as `read_card` does, SourceDropped and what the source raises.
    """
    facts = _facts(source)
    card_id = import_record.card_id(source.id, source.revision)
    return ModelCard(
        id=card_id, path=source.name, origin="imported", tokenizer_hash=None, licence=source.licence, **facts
    )


def _facts(source: ModelSource) -> dict[str, Any]:
    """All that config.json and the headers say."""
    sizes = source.sizes()
    if CONFIG not in sizes:
        raise _no_model(source, sizes)
    config = read_object(source, CONFIG, CONFIG_BYTES)
    facts, notes, multimodal = configuration.read(config)
    if not any(name in sizes for name in TOKENIZER_FILES):
        raise InvalidModel(f"{source.name} has no tokenizer: put its tokenizer.json beside config.json.")
    weights = read_weights(source, sizes)
    text, outside = _parts(weights.tensors) if multimodal else (weights.tensors, {})
    _check_agreement(facts, text, config)
    announced = announced_quantization.announcements(config, _side_files(source, sizes))
    stored = announced_quantization.recognise(weights.tensors, announced, transposed=facts["model_type"] in TRANSPOSED)
    bits = announced_quantization.packed_bits(announced) or (stored.bits if stored else None)
    tied = bool(facts["tied_embeddings"])
    # not those that every token passes through
    routed = {name: info for name, info in text.items() if ".experts." in name}
    return {
        **facts,
        "notes": (*notes, *([stored.sentence] if stored else [])),
        "revision": _revision(source, sizes, weights.digest),
        "dtype": _dtype(config, weights.tensors),
        "parameters": _parameters(weights.tensors, tied, bits),
        "outside_parameters": _parameters(outside, tied, bits),
        "expert_parameters": (_parameters(routed, False, bits) or None) if facts["experts"] else None,
        "gated_mlp": any(GATED.search(name) for name in text),
        "weights_bytes": weights.bytes,
        "bytes_by_dtype": bytes_by_dtype(weights.tensors),
        "quantization": stored.method if stored else None,
        "quantization_bits": stored.bits if stored else None,
        "stored": stored,
    }


def _no_model(source: ModelSource, sizes: Mapping[str, int]) -> InvalidModel:
    """Return a sentence for a folder without config.json that says what it is, if that is known."""
    if ADAPTER in sizes:
        base = read_object(source, ADAPTER, CONFIG_BYTES).get("base_model_name_or_path")
        named = f" for {base[:100]}" if isinstance(base, str) and base else ""
        return InvalidModel(
            f"{source.name} holds an adapter (LoRA){named}, no model: merge it into its base (PEFT's "
            "`merge_and_unload`) and give the folder that this is saved to."
        )
    if PurePosixPath(source.name).name.startswith("models--"):
        return InvalidModel(
            f"{source.name} is a model's folder in a hub's cache: give the folder below its `snapshots`."
        )
    if models := list(gguf_parts.models(file for file in sizes if file.lower().endswith(".gguf"))):
        more = f", or one of {len(models) - 1} others" if len(models) > 1 else ""
        return InvalidModel(
            f"{source.name} has GGUF files and no config.json: import the file itself, {models[0]}{more}, once it is "
            "on this machine."
        )
    return InvalidModel(f"{source.name} has no config.json: it is not a model folder.")


def _parts(tensors: dict[str, TensorInfo]) -> tuple[dict[str, TensorInfo], dict[str, TensorInfo]]:
    """A multimodal model's text part, and the rest."""
    text = {name: info for name, info in tensors.items() if TEXT_PART.search(name)}
    return text, {name: info for name, info in tensors.items() if name not in text}


def _check_agreement(facts: dict[str, Any], tensors: dict[str, TensorInfo], config: dict[str, Any]) -> None:
    """Config and weights must describe one model; tensors under names that no family here has are not judged."""
    embeddings = [info.shape for name, info in tensors.items() if name.endswith(EMBEDDINGS) and len(info.shape) == 2]
    expected = (facts["vocabulary"], config.get("word_embed_proj_dim", facts["hidden_size"]))
    if len(embeddings) == 1 and embeddings[0] != expected:
        raise InvalidModel(
            f"config.json says vocabulary {facts['vocabulary']} and hidden size {facts['hidden_size']}, but the "
            "embedding "
            f"is {' x '.join(map(str, embeddings[0]))}: config.json and the weights belong to different models."
        )
    untied = facts["model_type"] in NATIVE_FAMILIES and not facts["tied_embeddings"]
    if untied and not any(name.startswith(HEAD_MODULES) for name in tensors):
        raise InvalidModel(
            "The output head (lm_head.weight) is missing, and config.json does not tie it to the embedding: download "
            "or export the model again."
        )
    layers = {int(match[1]) for match in map(LAYER.search, tensors) if match}
    # DeepSeek stores the layers that predict further tokens behind the others
    extra = config.get("num_nextn_predict_layers")
    layer_count = facts["layers"]
    allowed = {layer_count, layer_count + extra} if type(extra) is int else {layer_count}
    if layers and not (len(layers) in allowed and layers == set(range(len(layers)))):
        raise InvalidModel(
            f"config.json says {layer_count} layers, but the weights hold {len(layers)}: "
            "config.json and the weights belong to different models, or a shard is missing."
        )


def _revision(source: ModelSource, sizes: Mapping[str, int], weights: str) -> str:
    """sha256 over config.json, the `weights`' own digest, and what else says how to read them."""
    digest = hashlib.sha256(source.read(CONFIG) + weights.encode())
    for file in announced_quantization.SIDE_FILES:
        if file in sizes:
            digest.update(source.read(file))
    return digest.hexdigest()


def _side_files(source: ModelSource, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The files beside config.json that announce a quantization, by their names. Raises InvalidModel where one is
    damaged."""
    return {
        file: read_object(source, file, CONFIG_BYTES) for file in announced_quantization.SIDE_FILES if file in sizes
    }


def _parameters(tensors: dict[str, TensorInfo], tied: bool, bits: int | None) -> int:
    """Elements of all weights: tied embeddings once, packed integers unpacked; scales, zero points and buffers left
    out."""
    per_word = 32 // (bits if bits in announced_quantization.PACKED_BITS else 4)
    counted = (name for name in tensors if not (_is_buffer(name, tensors[name]) or (tied and name.endswith(HEADS))))
    return sum(_elements(name, tensors[name], per_word) for name in counted)


def _is_buffer(name: str, info: TensorInfo) -> bool:
    """Older checkpoints of GPT-2 and GPT-NeoX hold the causal mask, four-dimensional, under the name of a bias."""
    return name.endswith(NOT_PARAMETERS) or (name.endswith(".bias") and len(info.shape) == 4)


def _elements(name: str, info: TensorInfo, per_word: int) -> int:
    if name.endswith(PACKED) and info.dtype == "I32":
        return info.elements * per_word
    return info.elements * (2 if name.endswith(HALVES) and info.dtype == "U8" else 1)


def _dtype(config: dict[str, Any], tensors: dict[str, TensorInfo]) -> str:
    """Return the dtype of config.json (`dtype`, before transformers 5 `torch_dtype`), else that of most elements."""
    stated = config.get("dtype") or config.get("torch_dtype")
    if isinstance(stated, str):
        return stated
    counts: Counter[str] = Counter()
    for info in tensors.values():
        counts[info.dtype] += info.elements
    most = max(counts, key=lambda dtype: (counts[dtype], dtype))
    return DTYPES.get(most, most.lower())
