"""Writes the tensors of a GGUF file as bfloat16 safetensors under transformers' names, a shard at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from backend import files
from backend.domain.model.gguf.conversion import CarriedTensor, Conversion
from backend.engines.gguf.gguf_file import GgufFile, rounded
from backend.layered.weight_source import INDEX

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 2 * 10**9


class Target(NamedTuple):
    """One tensor of the model folder: a tensor of the file, or one expert of it."""

    name: str
    tensor: CarriedTensor
    expert: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape if self.expert is None else self.tensor.shape[1:]

    @property
    def bytes(self) -> int:
        return 2 * math.prod(self.shape)


def write(stored: GgufFile, conversion: Conversion, folder: Path) -> None:
    """Write shards of at most SHARD_BYTES, or of one larger tensor, and their index if there are several."""
    from safetensors.torch import save_file

    # 1. Write shard after shard.
    shards = _shards(conversion)
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        tensors = {target.name: _tensor(stored, target) for target in shard}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        del tensors

    # 2. Write the index.
    if len(shards) > 1:
        places: dict[str, str] = {}
        size = 0
        for name, shard in zip(names, shards, strict=True):
            places |= {target.name: name for target in shard}
            size += sum(target.bytes for target in shard)
        files.write(
            folder / INDEX, json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=1) + "\n"
        )


def _shards(conversion: Conversion) -> list[list[Target]]:
    shards: list[list[Target]] = [[]]
    for target in _targets(conversion):
        if shards[-1] and sum(earlier.bytes for earlier in shards[-1]) + target.bytes > SHARD_BYTES:
            shards.append([])
        shards[-1].append(target)
    return shards


def _targets(conversion: Conversion) -> Iterator[Target]:
    for tensor in conversion.tensors:
        if len(tensor.becomes) == 1:
            yield Target(tensor.becomes[0], tensor, None)
        else:
            yield from (Target(name, tensor, expert) for expert, name in enumerate(tensor.becomes))


def _tensor(stored: GgufFile, target: Target) -> torch.Tensor:
    """Return a tensor in bfloat16, rows in transformers' order."""
    import torch

    shape = target.shape
    if len(shape) == 1:
        whole = rounded(stored.floats(target.tensor.name))
    else:
        # Filled piece by piece, so that the 32-bit floats of a large matrix are never all there.
        whole, start = torch.empty(shape, dtype=torch.bfloat16), 0
        for piece in stored.pieces(target.tensor.name, shape[1], shape[0], target.expert):
            whole[start : start + len(piece)] = rounded(piece)
            start += len(piece)
    if not target.tensor.turned_heads:
        return whole
    # llama.cpp keeps the two numbers that are rotated together side by side, transformers half a head apart.
    halves = whole.reshape(target.tensor.turned_heads, -1, 2, *shape[1:])
    return halves.transpose(1, 2).reshape(shape).contiguous()
