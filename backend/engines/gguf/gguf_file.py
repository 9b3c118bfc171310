"""Keys, arrays and tensors of a GGUF file or of its parts, with the package gguf. Tensors are unpacked a piece at a
time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

PIECE_ELEMENTS = 1 << 25
"""Unpacked at a time: 128 MB of 32-bit floats."""


class GgufFile:
    """`values` are keys with one value, `lists` keys with several; both are those of the first part, which has them
    all."""

    def __init__(self, parts: Sequence[Path]) -> None:
        from gguf import GGUFReader, GGUFValueType

        readers = [GGUFReader(part) for part in parts]
        self._tensors: dict[str, Any] = {}
        for reader in readers:
            self._tensors |= {tensor.name: tensor for tensor in reader.tensors}
        fields = {name: field for name, field in readers[0].fields.items() if not name.startswith("GGUF.")}
        lists = {name for name, field in fields.items() if field.types[0] == GGUFValueType.ARRAY}
        self.values: dict[str, Any] = {name: field.contents() for name, field in fields.items() if name not in lists}
        self.lists: dict[str, list[Any]] = {name: fields[name].contents() for name in lists}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def floats(self, name: str, rows: Any = slice(None)) -> np.ndarray[Any, Any]:
        """Unpack some rows of a tensor to 32-bit floats; rows of a stack of experts are experts."""
        from gguf import dequantize

        tensor = self._tensors[name]
        unpacked: np.ndarray[Any, Any] = dequantize(tensor.data[rows], tensor.tensor_type)
        return unpacked

    def pieces(
        self, name: str, row_elements: int, rows: int, expert: int | None = None
    ) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the rows of a matrix, or of one expert of a stack, a few at a time."""
        from gguf import dequantize

        tensor = self._tensors[name]
        data = tensor.data if expert is None else tensor.data[expert]
        step = max(1, PIECE_ELEMENTS // row_elements)
        for start in range(0, rows, step):
            yield dequantize(data[start : start + step], tensor.tensor_type)


def rounded(values: np.ndarray[Any, Any]) -> torch.Tensor:
    """Round to bfloat16, as the model folder stores it."""
    import numpy as np
    import torch

    return torch.from_numpy(np.require(values, requirements=["C", "W"])).to(torch.bfloat16)
