"""Reads a plain checkpoint whose experts are stored fused as one that has a linear for each.

transformers 5 writes the fused layout with `save_pretrained(save_original_format=False)`: in each layer `gate_up_proj`
[experts, 2 x intermediate, hidden], the gates before the ups, and `down_proj` [experts, hidden, intermediate], under
the names of its own modules. Servers and quantized formats have a matrix for each expert under the family's names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from backend.domain.errors import ModelDamaged
from backend.layered.families import Experts, Family
from backend.layered.weight_source import Header, WeightSource

if TYPE_CHECKING:
    import torch

GATE_UP, DOWN = "gate_up_proj", "down_proj"


class Part(NamedTuple):
    """A tensor of the checkpoint, and what of it is one expert's matrix: all of it where `expert` is None."""

    stored: str
    expert: int | None = None
    rows: slice = slice(None)


class FusedExpertsSource(WeightSource):
    """The checkpoint of `source` by the names that it would have with a linear for each expert.

    Raises ModelDamaged for fused tensors that are no three-dimensional matrices of experts.
    """

    def __init__(self, source: WeightSource, family: Family) -> None:
        super().__init__(source.folder)
        assert family.experts is not None
        # 1. The parts of every plain name.
        self._source = source
        self._parts: dict[str, Part] = {}
        for name in source.plain():
            if is_fused(name, family.experts):
                self._split(name, family)
            else:
                self._parts[_as_stored(name, family)] = Part(name)
        # 2. Files and headers by plain names.
        files, headers = self.files, self.tensors
        self.files = {name: files[part.stored] for name, part in self._parts.items()}
        self.tensors = {name: self._header(part, headers[part.stored]) for name, part in self._parts.items()}

    def _split(self, name: str, family: Family) -> None:
        """Add the matrices of all experts that one fused tensor holds."""
        assert family.experts is not None
        names, shape = family.experts, self.tensors[name].shape
        module, _, local = name.rpartition(".")
        if len(shape) != 3 or (local == GATE_UP and shape[1] % 2):
            raise ModelDamaged(f"{name} is no stack of experts' matrices: download or export the model again.")
        half = shape[1] // 2
        rows = (
            {names.gate: slice(0, half), names.up: slice(half, None)} if local == GATE_UP else {names.down: slice(None)}
        )
        for expert in range(shape[0]):
            for linear, part in rows.items():
                self._parts[_as_stored(f"{module}.{expert}.{linear}.weight", family)] = Part(name, expert, part)

    def _header(self, part: Part, header: Header) -> Header:
        if part.expert is None:
            return header
        rows = len(range(*part.rows.indices(header.shape[1])))
        return Header(header.dtype, (rows, header.shape[2]))

    def plain(self) -> list[str]:
        """Return every name that a checkpoint with a linear for each expert would have."""
        return list(self._parts)

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of these names; a fused one is read once for all of its experts."""
        by_stored: dict[str, list[str]] = {}
        for name in names:
            by_stored.setdefault(self._parts[name].stored, []).append(name)
        for stored, plain_names in by_stored.items():
            tensor = self._source.one(stored)
            for name in plain_names:
                part = self._parts[name]
                yield name, tensor if part.expert is None else tensor[part.expert][part.rows]


def is_fused(name: str, experts: Experts) -> bool:
    """Return whether a tensor of that name holds the matrices of all experts of a layer."""
    module, _, local = name.rpartition(".")
    return local in {GATE_UP, DOWN} and module.endswith(experts.path)


def _as_stored(name: str, family: Family) -> str:
    """Return the family's name in checkpoints for what transformers calls otherwise inside a layer."""
    head, layers, inside = name.partition("layers.")
    number, dot, local = inside.partition(".")
    for stored, path in family.stored:
        if layers and number.isdigit() and local.startswith(path):
            return f"{head}{layers}{number}{dot}{stored}{local.removeprefix(path)}"
    return name
