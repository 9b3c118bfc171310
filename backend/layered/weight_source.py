"""A checkpoint's tensors by name, read one at a time from its safetensors files. Knows no model and no quantization."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.errors import ModelDamaged
from backend.domain.model.stored_weights import ASIDE

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """Return the checkpoint's safetensors files, from the index if there is one."""
    if (folder / INDEX).is_file():
        shards = set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
        return [folder / shard for shard in sorted(shards)]
    return [folder / "model.safetensors"]


def within_positions(folder: Path, length: int) -> int:
    """Limit a sequence length to the model's positions: a table of positions has no more rows."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min(length, positions) if isinstance(positions, int) and positions > 0 else length


class Header(NamedTuple):
    """One tensor in the header of a safetensors file; `dtype` as safetensors names it."""

    dtype: str
    shape: tuple[int, ...]


class WeightSource:
    """A checkpoint's tensors by name, read one at a time; only headers are read at first, no file stays open.

    Raises ModelDamaged where a shard is missing, cannot be read, or lacks a tensor that the index promises.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Path] = {}
        self.tensors: dict[str, Header] = {}
        """Headers of the tensors as stored, whatever subclasses make of them."""
        # 1. Read the header of every file.
        for path in weight_files(folder):
            with _opened(path) as file:
                names = list(file.keys())
                slices = {name: file.get_slice(name) for name in names}
                self.files |= dict.fromkeys(slices, path)
                self.tensors |= {
                    name: Header(part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()
                }
        # 2. Compare with the index, which may promise more.
        index = folder / INDEX
        promised = json.loads(index.read_bytes())["weight_map"] if index.is_file() else {}
        for name in promised.keys() - self.files.keys():
            raise ModelDamaged(f"{name} is listed in {INDEX} but is in no shard: download or export the model again.")

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of these names, file by file."""
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self.files[name], []).append(name)
        for path, stored_names in by_file.items():
            with _opened(path) as file:
                for name in stored_names:
                    yield name, file.get_tensor(name)

    def one(self, name: str) -> torch.Tensor:
        """Read one tensor."""
        return next(tensor for _, tensor in self.read([name]))

    def plain(self) -> list[str]:
        """Return every name that a plain checkpoint would have and `read` knows."""
        return list(self.files)

    @property
    def dtypes(self) -> set[str]:
        """Dtypes of the plainly stored tensors, as safetensors names them (F16, BF16)."""
        return {header.dtype for header in self.tensors.values()}

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in set(self.files.values()))


class PackedSource(WeightSource):
    """A checkpoint that stores weights in parts, read by the names of a plain one.

    Subclasses fill `parts`, from the name of a weight to the stored names it is made of, and make it in `weight`.
    """

    parts: dict[str, list[str]]

    def named(self, parts: dict[str, list[str]]) -> None:
        """Set the parts of each weight. Raises ModelDamaged if one is missing."""
        for stored_names in parts.values():
            for part in stored_names:
                if part not in self.files:
                    raise ModelDamaged(f"The checkpoint in {self.folder} lacks {part}: make it again.")
        self.parts = parts
        self.files |= {name: self.files[stored_names[0]] for name, stored_names in parts.items()}
        mere = set(chain.from_iterable(parts.values())) - parts.keys()
        self._plain = [name for name in self.files if name not in mere and name.rpartition(".")[2] not in ASIDE]

    def plain(self) -> list[str]:
        """Return every name but those of parts and of settings for rounding inputs or the cache."""
        return self._plain

    @property
    def dtypes(self) -> set[str]:
        return {self.tensors[name].dtype for name in self.plain() if name not in self.parts}

    def weight(self, name: str, stored_parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """Make a weight, as a plain checkpoint would store it, from its parts."""
        raise NotImplementedError

    def stored(self, name: str) -> dict[str, torch.Tensor]:
        """Read the parts of a weight, by name, as stored."""
        return dict(super().read(self.parts[name]))

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of these names, with packed weights made plain."""
        selected = list(names)
        yield from super().read(name for name in selected if name not in self.parts)
        for name in selected:
            if name in self.parts:
                yield name, self.weight(name, self.stored(name))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise ModelDamaged(f"{path.name} cannot be read ({error}): download or export the model again.") from None
