"""Reads and checks the header of a safetensors file: which tensors it holds and where. No weight is loaded.

Knows nothing of models, torch, configuration or where the file lies. The format: 8 bytes little-endian header size,
that many bytes of JSON (name -> dtype, shape, [start, end) in the data that follows), data without holes
(https://huggingface.co/docs/safetensors, "Format").
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from backend.catalog.cards.source import FolderSource, ModelSource
from backend.domain.errors import InvalidModel

MAX_HEADER_BYTES, MAX_TENSORS = 16_000_000, 65_536
"""Limits for one file; the largest published have a few hundred tensors a file, and a model in one file some
thousands."""
MAX_DIMENSIONS, MAX_SIZE = 8, 2**63
FIRST_BYTES = 64 * 1024
"""Bytes read first of a file whose header's length is unknown."""

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
    source = FolderSource(path.parent)
    return parse(source, path.name, source.read(path.name, 0, FIRST_BYTES), source.sizes()[path.name])[0]


def parse(source: ModelSource, file: str, first: bytes, total: int) -> tuple[dict[str, TensorInfo], bytes]:
    """Parse a header, and return its raw bytes too (for hashing).

    `first` is the beginning of the file, read already; the rest of the header is asked for where it is longer. `total`
    is the size of the file in bytes.
    """
    raw = _raw(source, file, first, total)
    document = _document(file, raw)
    document.pop("__metadata__", None)
    tensors = {name: _tensor(file, name, entry) for name, entry in document.items()}
    _check_layout(file, tensors, total - 8 - len(raw))
    return tensors, raw


def _raw(source: ModelSource, file: str, first: bytes, total: int) -> bytes:
    size = int.from_bytes(first[:8], "little")
    if len(first) < 8 or size > min(MAX_HEADER_BYTES, total - 8):
        raise _damaged(file, "its header is cut off or claims an impossible size")
    end = 8 + size
    raw = first[8:end] if end <= len(first) else first[8:] + source.read(file, len(first), end)
    if len(raw) < size:
        raise _damaged(file, "its header is cut off or claims an impossible size")
    return raw


def _document(file: str, raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise _damaged(file, "its header is not valid JSON") from None
    if not isinstance(document, dict):
        raise _damaged(file, "its header is not a JSON object")
    if len(document) > MAX_TENSORS:
        raise _damaged(file, f"its header names {len(document):,} tensors where {MAX_TENSORS:,} are the most")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name occurs twice")
    return document


def _tensor(file: str, name: str, entry: Any) -> TensorInfo:
    if not isinstance(entry, dict):
        raise _damaged(file, f"the entry of {name!r} is not an object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in BITS:
        raise _damaged(file, f"{name!r} has an unknown dtype")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise _damaged(file, f"{name!r} has no valid shape or offsets")
    info = TensorInfo(dtype, tuple(shape), *offsets)
    if (info.end - info.start) * 8 != info.elements * BITS[dtype]:
        raise _damaged(file, f"the bytes of {name!r} do not match its shape")
    return info


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= MAX_DIMENSIONS
        and all(type(item) is int and 0 <= item < MAX_SIZE for item in value)
    )


def _check_layout(file: str, tensors: dict[str, TensorInfo], data_bytes: int) -> None:
    position = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != position:
            raise _damaged(file, f"{name!r} overlaps another tensor or leaves a hole")
        position = info.end
    if position != data_bytes:
        raise _damaged(file, f"it holds {data_bytes} bytes of data where its header describes {position}")


def _damaged(file: str, why: str) -> InvalidModel:
    return InvalidModel(f"{file} is not a sound safetensors file: {why}. Download or export it again.")
