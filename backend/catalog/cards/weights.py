"""The weights of a model by the headers of its safetensors files and their index: no weight is read.

Knows nothing of config.json and of what the tensors mean.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from backend import sandbox
from backend.catalog.cards import safetensors_header
from backend.catalog.cards.safetensors_header import FIRST_BYTES, TensorInfo
from backend.catalog.cards.source import ModelSource
from backend.domain.errors import InvalidModel

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
ENTRY_BYTES = 96
"""Bytes of a header's entry beside the tensor's name: dtype, shape, offsets and punctuation; seldom more."""


class Weights(NamedTuple):
    """`bytes` of the files; `digest` over their names, sizes and headers."""

    tensors: dict[str, TensorInfo]
    bytes: int
    digest: str


def read_weights(source: ModelSource, sizes: Mapping[str, int]) -> Weights:
    """Every tensor of the model. Raises InvalidModel where files and index do not agree or a file is damaged."""
    tensors: dict[str, TensorInfo] = {}
    digest = hashlib.sha256()
    # 1. Read the heads of all files, in one round of requests where the source is remote.
    index = read_index(source, sizes)
    files = weight_files(source, sizes, index)
    firsts = source.read_all(_first_reads(files, index))
    for file, first in zip(files, firsts, strict=True):
        tensor_infos, raw = safetensors_header.parse(source, file, first, sizes[file])
        digest.update(f"{file} {sizes[file]} ".encode() + raw)
        tensors |= tensor_infos
    # 2. Check that they hold what the index lists.
    missing = sorted(set(index or tensors) - set(tensors))
    if missing:
        raise InvalidModel(f"{INDEX} lists {missing[0]!r}, which no weight file holds: download the model again.")
    if not tensors:
        raise InvalidModel(
            f"The safetensors files of {source.name} hold no tensors: download or export the model again."
        )
    return Weights(tensors, sum(sizes[file] for file in files), digest.hexdigest())


def read_index(source: ModelSource, sizes: Mapping[str, int]) -> dict[str, str] | None:
    """Tensor name -> shard name, or None where the weights are one file. Raises InvalidModel."""
    if INDEX not in sizes:
        return None
    shards = read_object(source, INDEX, 2 * sandbox.JSON_BYTES).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise InvalidModel(f"{INDEX} has no usable `weight_map`: download or export the model again.")
    return shards


def read_object(source: ModelSource, file: str, most: int = sandbox.JSON_BYTES) -> dict[str, Any]:
    """A JSON object from a file; InvalidModel when the file is unreadable, not JSON, or not an object of up to `most`
    bytes."""
    if source.sizes().get(file, 0) > most:
        raise InvalidModel(
            f"{file} has more than {most / 1e6:g} MB, which none has: download or export the model again."
        )
    try:
        document = sandbox.read_json(source.read(file), most)
    except ValueError:
        raise InvalidModel(f"{file} is not valid JSON: download or export the model again.") from None
    if not isinstance(document, dict):
        raise InvalidModel(f"{file} is not a JSON object: download or export the model again.")
    return document


def weight_files(source: ModelSource, sizes: Mapping[str, int], index: Mapping[str, str] | None) -> list[str]:
    """The files that hold the weights, all of which are there. Raises InvalidModel naming what is missing or cannot be
    used."""
    if index is None:
        if SINGLE not in sizes:
            raise _no_weights(source, sizes)
        return [SINGLE]
    # Every file of the index is there, and no other shard lies beside them.
    shards = sorted(set(index.values()))
    for shard in shards:
        if PurePosixPath(shard).name != shard or not shard.endswith(".safetensors"):
            raise InvalidModel(f"{INDEX} names {shard!r}, which is not a safetensors file of the folder.")
        if shard not in sizes:
            raise InvalidModel(f"{INDEX} names {shard}, which is not in {source.name}: download the missing file.")
    unnamed = sorted(file for file in set(sizes) - set(shards) if SHARD.fullmatch(file))
    if unnamed:
        raise InvalidModel(
            f"{INDEX} does not name {unnamed[0]}, which is in {source.name}: index and shards do not belong together."
        )
    return shards


def _first_reads(files: list[str], index: Mapping[str, str] | None) -> list[tuple[str, int]]:
    """Return how many bytes to read of each file at first: one request is nearly always enough, and little is read in
    vain."""
    if index is None:
        return [(file, FIRST_BYTES) for file in files]
    expected = dict.fromkeys(files, 256)
    for name, shard in index.items():
        expected[shard] += len(name) + ENTRY_BYTES
    return list(expected.items())


def _no_weights(source: ModelSource, sizes: Mapping[str, int]) -> InvalidModel:
    pickled = sorted(file for file in sizes if any(fnmatch(file, pattern) for pattern in PICKLED))
    if pickled:
        return InvalidModel(
            f"{pickled[0]} holds pickled weights, which can run code when loaded: convert it to safetensors."
        )
    if any(file.endswith(".safetensors") for file in sizes):
        return InvalidModel(
            f"{source.name} has safetensors files but neither {SINGLE} nor {INDEX}: download the missing file."
        )
    return InvalidModel(f"{source.name} holds no safetensors weights: it needs {SINGLE}, or shards with {INDEX}.")


def bytes_by_dtype(tensors: Mapping[str, TensorInfo]) -> dict[str, int]:
    """Sum the bytes of all tensors by stored dtype, most first."""
    counter: Counter[str] = Counter()
    for info in tensors.values():
        counter[info.dtype] += info.end - info.start
    return dict(counter.most_common())
