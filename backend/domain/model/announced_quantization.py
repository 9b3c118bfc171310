"""Compares how a checkpoint announces its quantization with how its weights are stored. Knows no files and computes
nothing.

config.json and the files that other writers put beside it are compared with the tensors; a contradiction is refused by
name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from backend.domain.errors import InvalidModel
from backend.domain.model import stored_weights
from backend.domain.model.stored_weights import COMPRESSED_TENSORS, StoredKind, StoredModule, StoredWeights, Tensor

CONFIG = "config.json"
SIDE_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json", "quanto_qmap.json")
"""Files beside config.json that announce a quantization: of ModelOpt, AutoGPTQ, AutoAWQ and quanto."""
ANNOUNCING = ("quantization_config", "compression_config")
"""Fields of config.json, or of its text part, that do: of transformers, and of older compressed-tensors."""


class Announcement(NamedTuple):
    """`method` as the document calls it; None where it names none."""

    file: str
    method: str | None
    document: Mapping[str, Any]


def announcements(config: Mapping[str, Any], side_files: Mapping[str, Any]) -> list[Announcement]:
    """Return what config.json and the files beside it say, config.json first. `side_files` are documents by their
    names.

    Raises InvalidModel for a `quantization_config` that is no object or names no method.
    """
    # 1. config.json: its own announcement, else that of the model inside it.
    inner = [config[name] for name in sorted(config) if name.endswith("_config") and isinstance(config[name], Mapping)]
    models = [part for part in inner if "hidden_size" in part or "num_hidden_layers" in part]
    stated = []
    for part in (config, *models):
        documents = [part[field] for field in ANNOUNCING if part.get(field)]
        stated += [Announcement(CONFIG, _method(document), document) for document in documents[:1]]
    # 2. The files beside it.
    announced = [
        Announcement(file, _side_announcement(file, side_files[file]), side_files[file])
        for file in SIDE_FILES
        if file in side_files
    ]
    return [*stated[:1], *announced]


def _method(document: Any) -> str:
    """`quant_method`; MLX names none, and says bits and group size alone."""
    method = document.get("quant_method") if isinstance(document, Mapping) else None
    if isinstance(method, str):
        return method
    if isinstance(document, Mapping) and {"bits", "group_size"} <= document.keys():
        return stored_weights.MLX.method
    raise InvalidModel("config.json has a `quantization_config` without a `quant_method`: export the model again.")


def _side_announcement(file: str, document: Any) -> str | None:
    """The method of a file beside config.json; each writer has a file of its own."""
    if not isinstance(document, Mapping):
        return None
    method = document.get("quant_method")
    if file == "hf_quant_config.json":
        return "modelopt"
    if isinstance(method, str):
        return method
    if file == "quant_config.json" or "w_bit" in document:
        return "awq"
    return {"quantize_config.json": "gptq", "quanto_qmap.json": "quanto"}.get(file)


MEANS: dict[str, frozenset[StoredKind]] = {
    "fp8": frozenset({stored_weights.FP8}),
    "fbgemm_fp8": frozenset({stored_weights.FP8}),
    "gptq": frozenset({stored_weights.GPTQ, stored_weights.MARLIN, stored_weights.OTHERWISE_PACKED}),
    "awq": frozenset({stored_weights.AWQ, stored_weights.MARLIN, stored_weights.OTHERWISE_PACKED}),
    "bitsandbytes": frozenset({stored_weights.BITSANDBYTES_4, stored_weights.BITSANDBYTES_8}),
    "mxfp4": frozenset({stored_weights.MXFP4_BLOCKS}),
    "mlx": frozenset({stored_weights.MLX}),
    "modelopt": frozenset(
        {
            stored_weights.FP8,
            stored_weights.INT8,
            stored_weights.MODELOPT_NVFP4,
            stored_weights.NVFP4,
            stored_weights.MXFP8,
            stored_weights.CACHE,
            stored_weights.SCALED_INPUTS,
        }
    ),
    COMPRESSED_TENSORS: frozenset(
        {
            stored_weights.FP8,
            stored_weights.INT8,
            *stored_weights.OF_COMPRESSED_TENSORS,
            stored_weights.MODELOPT_NVFP4,
            stored_weights.MXFP4_BLOCKS,
            stored_weights.CACHE,
        }
    ),
}
"""The layouts that each method stores. Of another method nothing is known but that its weights are not plain."""


def recognise(
    tensors: Mapping[str, Tensor], announced: list[Announcement], *, transposed: bool = False
) -> StoredWeights | None:
    """Return how the weights are stored; None where all are plain and nothing announces otherwise. `transposed`
    families keep [in, out].

    Raises InvalidModel where what is announced and what is stored disagree.
    """
    # 1. What is stored, which must agree with what is announced.
    stored = stored_weights.modules(tensors, block_shape(announced), transposed=transposed)
    for announcement in announced:
        _check_agreement(announcement, stored)
    if not stored and not announced:
        return None
    # 2. Its words and method: the announced one, else the usual one of that kind.
    words = _listed({module.words for module in stored.values()}) or "plain floats"
    kinds = {module.kind for module in stored.values()}
    first = next((announcement for announcement in announced if announcement.method), None)
    usual = min((kind.method for kind in kinds), default=stored_weights.UNKNOWN)
    return StoredWeights(
        layout=words,
        method=(first.method if first else None) or usual,
        bits=max((_bits(module, announced) for module in stored.values()), default=16),
        announced=first.file if first else None,
        refusal=_refusal(stored, announced),
    )


def _bits(module: StoredModule, announcement: list[Announcement]) -> int:
    """Return the bits per weight; packed integers of compressed-tensors do not tell them."""
    announced = packed_bits(announcement) if module.kind is stored_weights.PACKED else None
    return announced or module.bits or module.kind.bits


def _listed(words: set[str]) -> str:
    """At most two of them, and how many there are besides."""
    first, others = sorted(words)[:2], len(words) - 2
    return " and ".join(first) + (f" and {others} other layouts" if others > 0 else "")


PACKED_BITS = frozenset({1, 2, 3, 4, 8, 16})


def packed_bits(announced: list[Announcement]) -> int | None:
    """Bits of one packed integer, as is announced (compressed-tensors: config_groups; awq, gptq: bits); None:
    nowhere."""
    for announcement in announced:
        document = announcement.document if isinstance(announcement.document, Mapping) else {}
        weights = _weights_of_a_group(document)
        bits = weights.get("num_bits") if isinstance(weights, Mapping) else document.get("bits", document.get("w_bit"))
        if type(bits) is int and bits in PACKED_BITS:
            return bits
    return None


def _weights_of_a_group(document: Mapping[str, Any]) -> Any:
    """Return what the first of compressed-tensors' groups says of weights."""
    group = next(iter(_groups(document).values()), None)
    return group.get("weights") if isinstance(group, Mapping) else None


def block_shape(announced: list[Announcement]) -> tuple[int, int]:
    """Rows and columns of an FP8 weight that share a scale."""
    for announcement in announced:
        document = announcement.document if isinstance(announcement.document, Mapping) else {}
        weights = _weights_of_a_group(document)
        block = document.get(
            "weight_block_size", weights.get("block_structure") if isinstance(weights, Mapping) else None
        )
        if isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block):
            return block[0], block[1]
    return stored_weights.BLOCK


def _means(announced: Announcement) -> frozenset[StoredKind] | None:
    """The layouts that the announced method stores; None where nothing is known of it. ModelOpt has variants of its
    name."""
    method = str(announced.method)
    return MEANS.get("modelopt" if method.startswith("modelopt") else method)


def _check_agreement(announced: Announcement, stored: Mapping[str, StoredModule]) -> None:
    """Raise InvalidModel where the weights are not stored as `announced`."""
    known = _means(announced)
    if known is None or (announced.method == COMPRESSED_TENSORS and not _groups(announced.document) and not stored):
        return
    # 1. Every module must be stored as announced.
    for name, module in stored.items():
        if module.kind not in known and module.kind.name != stored_weights.UNKNOWN:
            raise InvalidModel(
                f"{announced.file} announces {announced.method}, but {name} is stored as {module.words}: they belong "
                "to different models. Export or download the model again."
            )
    # 2. Something must be quantized at all.
    if not stored:
        raise InvalidModel(
            f"{announced.file} announces {announced.method}, but the weights are stored as plain floats: take that "
            f"out of {announced.file} if they were never quantized, or export the model again."
        )
    # 3. The bits of GPTQ must agree, unless the file announces several.
    document: Mapping[str, Any] = announced.document if isinstance(announced.document, Mapping) else {}
    bits = document.get("bits") if announced.method == "gptq" else None
    mixed = document.get("dynamic")
    other = next(
        (name for name, module in stored.items() if module.kind is stored_weights.GPTQ and module.bits != bits), None
    )
    if type(bits) is int and other is not None and not mixed:
        raise InvalidModel(
            f"{announced.file} says {bits} bits, but {other} is stored with {stored[other].bits}: they belong to "
            "different models. Export or download the model again."
        )


def _groups(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """`config_groups` of compressed-tensors."""
    groups = document.get("config_groups")
    return groups if isinstance(groups, Mapping) else {}


def _refusal(stored: Mapping[str, StoredModule], announced: list[Announcement]) -> str | None:
    """Return why the weights cannot be read exactly, the first reason; None where they can."""
    return next(_reasons(stored, announced), None)


def _reasons(stored: Mapping[str, StoredModule], announced: list[Announcement]) -> Iterator[str]:
    # 1. Modules and tensors that no reader knows.
    unread = {module.words for module in stored.values() if module.kind.parts is None}
    if unread:
        yield f"there is no reader here for {_listed(unread)}"
    for name, module in stored.items():
        beyond = stored_weights.beyond(module.kind, module.tensors)
        if beyond:
            yield f"{name} holds `{min(beyond)}`, which nothing here reads"
        if (
            module.kind is stored_weights.INT8
            and "weight_zero_point" in module.tensors
            and settings(announced, COMPRESSED_TENSORS) is None
        ):
            yield "it has zero points, and nothing announces how they are packed"
    # 2. Settings that the kinds of storage need.
    kinds = {module.kind for module in stored.values()}
    own = kinds.intersection(stored_weights.OF_COMPRESSED_TENSORS)
    if own or settings(announced, COMPRESSED_TENSORS) is not None:
        yield from _compressed_tensors_settings(announced)
    for kind, reasons in ((stored_weights.GPTQ, _gptq_settings), (stored_weights.AWQ, _awq_settings)):
        if kind in kinds:
            yield from reasons(announced)
    # 3. Announced methods that no reader knows.
    for announcement in announced:
        if announcement.method and _means(announcement) is None:
            yield f"there is no reader here for {announcement.method}"


def settings(announced: list[Announcement], method: str) -> dict[str, Any] | None:
    """Return what all documents of a method say, config.json before the others; None where none announces it."""
    own = [announcement.document for announcement in announced if announcement.method == method]
    documents = [document for document in own if isinstance(document, Mapping)]
    if not documents:
        return None
    joined: dict[str, Any] = {}
    for document in reversed(documents):
        joined |= document
    return joined


FORMATS = (
    "None",
    "dense",
    "compressed",
    "mixed-precision",
    "naive-quantized",
    "int-quantized",
    "float-quantized",
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
)
"""Formats of compressed-tensors whose weights are a number times a scale, or whose modules tell the scheme."""


def _compressed_tensors_settings(announced: list[Announcement]) -> Iterator[str]:
    """Return what of compressed-tensors' configuration is beyond scales and zero points."""
    document = settings(announced, COMPRESSED_TENSORS)
    if document is None:
        yield "nothing announces how its numbers are packed (`config_groups` of compressed-tensors)"
        return
    groups = [group for group in _groups(document).values() if isinstance(group, Mapping)]
    formats = {str(part.get("format")) for part in (document, *groups)}
    if odd := sorted(formats - set(FORMATS)):
        yield f"there is no reader here for its format {odd[0]}"
    sparsity = document.get("sparsity_config")
    if isinstance(sparsity, Mapping) and str(sparsity.get("format")) not in {"None", "dense"}:
        yield f"its weights are stored sparse ({sparsity.get('format')}), which vLLM no longer reads"
    if document.get("transform_config"):
        yield "its activations are rotated between layers (`transform_config`)"


def _gptq_settings(announced: list[Announcement]) -> Iterator[str]:
    """Old writers store zero points minus one, `gptq_v2` as they are; those of symmetric weights are known."""
    # 1. Without a document nothing is known of the zero points.
    document = settings(announced, "gptq")
    if document is None:
        yield (
            "nothing announces whether its zero points are stored minus one (put its quantize_config.json beside "
            "config.json)"
        )
        return
    # 2. Forms and settings that are not read.
    form = str(document.get("checkpoint_format") or "gptq")
    if form not in {"gptq", GPTQ_V2}:
        yield f"there is no reader here for its format {form}"
    if document.get("dynamic"):
        yield "its settings differ between modules (`dynamic`)"
    # 3. Zero points that cannot be told.
    if not isinstance(document.get("sym"), bool):
        yield "nothing says whether it is symmetric (`sym`)"
    elif not document["sym"] and form != GPTQ_V2 and NEWER.search(json.dumps(document.get("meta"))):
        yield "GPTQModel 5 stores the zero points of asymmetric weights in two ways under one name"


GPTQ_V2 = "gptq_v2"
NEWER = re.compile(r"gptqmodel:([5-9]|\d\d)")
"""Versions in `meta.quantizer`: https://github.com/vllm-project/vllm/pull/38966 has checkpoints of it with either."""


def _awq_settings(announced: list[Announcement]) -> Iterator[str]:
    document = settings(announced, "awq") or {}
    version = str(document.get("version", "gemm")).lower()
    if version != "gemm":
        yield f"there is no reader here for AWQ's version {version}"
    if document.get("zero_point") is False:
        yield "it has no zero points, which AutoAWQ's readers do not take"
