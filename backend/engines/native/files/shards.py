"""Joins finished parts, one safetensors file each, into the shards of a checkpoint, by copying bytes: no tensor is ever loaded.

The form of a safetensors file: the length of the header (8 bytes, little-endian), the header (JSON), the data. Knows no model.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from backend import files
from backend.engines.native.files.checkpoint import write_json
from backend.layered.source import INDEX

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 5_000_000_000
ALIGNMENT = 8
OS_ERROR = re.compile(r"os error (\d+)")


def write_part(path: Path, tensors: dict[str, torch.Tensor], *, flush: bool = True) -> None:
    """`flush`: whether a run after a crash may go on from it. Raises DiskFull or WorkError, and then leaves nothing behind."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    held = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    with files.staged_file(path, flush=flush) as staged:
        try:
            save_file(held, staged, metadata={"format": "pt"})
        except SafetensorError as error:  # the system's own number stands in its words alone
            number = OS_ERROR.search(str(error))
            raise OSError(int(number[1]) if number else errno.EIO, str(error)) from None
        staged.chmod(0o644)  # safetensors makes files that only their owner can read


def join(parts: Sequence[Path], folder: Path, shard_bytes: int = SHARD_BYTES) -> int:
    """Write `parts` in order as one file, or as shards of at most `shard_bytes` with their index; return the bytes written.

    A part that is larger by itself is a shard of its own. The parts stay. Raises DiskFull or WorkError.
    """
    shards = _shards(parts, shard_bytes)
    names = [_shard_name(number, len(shards)) for number in range(1, len(shards) + 1)]
    weight_map: dict[str, str] = {}
    total = 0
    for name, held in zip(names, shards, strict=True):
        header, size = _joined_header(held)
        with files.staged_file(folder / name) as staged:
            _copy(held, header, staged)
        weight_map |= dict.fromkeys((key for key in header if key != "__metadata__"), name)
        total += size
    if len(shards) > 1:
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return sum((folder / name).stat().st_size for name in names)


def _shards(parts: Sequence[Path], limit: int) -> list[list[Path]]:
    shards: list[list[Path]] = [[]]
    size = 0
    for part in parts:
        added = part.stat().st_size
        if shards[-1] and size + added > limit:
            shards.append([])
            size = 0
        shards[-1].append(part)
        size += added
    return shards


def _shard_name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def _read_header(file: BinaryIO) -> dict[str, Any]:
    """The header without its metadata; the file then stands at the first byte of data."""
    header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    header.pop("__metadata__", None)
    return header


def _joined_header(parts: Sequence[Path]) -> tuple[dict[str, Any], int]:
    """The header of all parts one after another, and the bytes of their data."""
    joined: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for part in parts:
        with part.open("rb") as file:
            header = _read_header(file)
        end = offset
        for name, entry in header.items():
            begin, end_of_entry = (offset + number for number in entry["data_offsets"])
            joined[name] = {**entry, "data_offsets": [begin, end_of_entry]}
            end = max(end, end_of_entry)
        offset = end
    return joined, offset


def _copy(parts: Sequence[Path], header: dict[str, Any], path: Path) -> None:
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % ALIGNMENT)
    with path.open("wb") as sink:
        sink.write(len(encoded).to_bytes(8, "little") + encoded)
        for part in parts:
            with part.open("rb") as source:
                _read_header(source)
                shutil.copyfileobj(source, sink, 1 << 22)
