"""Reads and checks the header of a safetensors file: which tensors it holds and where. No weight is loaded.

Knows nothing of models, torch or configuration. The format: 8 bytes little-endian header size, that many bytes of JSON
(name -> dtype, shape, [start, end) in the data that follows), data without holes
(https://huggingface.co/docs/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from backend.domain.errors import InvalidModel

MAX_HEADER_BYTES = 100_000_000
"""The safetensors library's own limit."""

BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


class TensorInfo(NamedTuple):
    """One tensor: `start` and `end` are byte offsets into the data after the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def read(path: Path) -> dict[str, TensorInfo]:
    """The file's tensors by name.

    Raises InvalidModel when the file cannot be read, its header is damaged, or the data is not what the header says.
    """
    return parse(path)[0]


def parse(path: Path) -> tuple[dict[str, TensorInfo], bytes]:
    """As `read`, with the header's raw bytes beside it (for hashing)."""
    raw, data_bytes = _raw(path)
    document = _document(path, raw)
    document.pop("__metadata__", None)
    tensors = {name: _tensor(path, name, entry) for name, entry in document.items()}
    _check_layout(path, tensors, data_bytes)
    return tensors, raw


def _raw(path: Path) -> tuple[bytes, int]:
    """Header bytes, and the number of data bytes after them."""
    try:
        with path.open("rb") as file:
            total = file.seek(0, 2)
            file.seek(0)
            prefix = file.read(8)
            size = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or size > min(MAX_HEADER_BYTES, total - 8):
                raise _damaged(path, "its header is cut off or claims an impossible size")
            return file.read(size), total - 8 - size
    except OSError as error:
        raise InvalidModel(f"{path.name} cannot be read ({error.strerror}): check the file and its permissions.") from None


def _document(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise _damaged(path, "its header is not valid JSON") from None
    if not isinstance(document, dict):
        raise _damaged(path, "its header is not a JSON object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name occurs twice")
    return document


def _tensor(path: Path, name: str, entry: Any) -> TensorInfo:
    if not isinstance(entry, dict):
        raise _damaged(path, f"the entry of {name!r} is not an object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _damaged(path, f"{name!r} has an unknown dtype")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise _damaged(path, f"{name!r} has no valid shape or offsets")
    info = TensorInfo(dtype, tuple(shape), *offsets)
    if (info.end - info.start) * 8 != info.elements * BITS[dtype]:
        raise _damaged(path, f"the bytes of {name!r} do not match its shape")
    return info


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(path: Path, tensors: dict[str, TensorInfo], data_bytes: int) -> None:
    position = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != position:
            raise _damaged(path, f"{name!r} overlaps another tensor or leaves a hole")
        position = info.end
    if position != data_bytes:
        raise _damaged(path, f"it holds {data_bytes} bytes of data where its header describes {position}")


def _damaged(path: Path, why: str) -> InvalidModel:
    return InvalidModel(f"{path.name} is not a sound safetensors file: {why}. Download or export it again.")
