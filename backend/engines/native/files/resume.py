"""State of a stopped run, from which a later one continues at the next layer, to the same bytes.

A folder with one finished part a layer, the hidden states that enter the next layer, and a state file that is replaced
last. Knows no model: names, numbers and files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import Field

from backend import files
from backend.domain.errors import DiskFull
from backend.engines.attempt_state import AttemptState
from backend.layered.hidden_states import HiddenStates

STATE = "state.json"
VERSIONS = ("torch", "transformers", "compressed-tensors", "safetensors")
ARITHMETIC = 4
"""Raised whenever the engine's own arithmetic changes, or what it saves: what one left another must not go on with."""


class LayerState(AttemptState):
    """The state of a run between two layers."""

    done: int = 0
    """Layers whose parts are written."""
    checksum: int = 0
    """Checksum of the hidden states that enter the next layer."""
    stored_checksum: int = 0
    """Checksum of those behind the layers as they are stored, where a method learns from them."""
    layers: list[dict[str, Any]] = Field(default_factory=list)
    """The reports so far."""


class WorkFolder:
    """The folder of one run. `resumable` is False if no attempt will go on from it: it is removed whatever happens."""

    def __init__(self, folder: Path, resumable: bool) -> None:
        self.folder, self.resumable = folder, resumable

    def part(self, number: int) -> Path:
        """Return the path of a part: 0 holds the tensors outside the layers, n those of the n-th layer."""
        return self.folder / f"part-{number:05d}.safetensors"

    def parts(self, count: int) -> list[Path]:
        return [self.part(number) for number in range(count + 1)]

    def load(self, key: str, *, parts: bool = True) -> LayerState | None:
        """Read the state of an earlier attempt at the same run; None if something that it promises is missing.

        `parts`: the run writes parts.
        """
        state = LayerState.read(self.folder / STATE, key)
        whole = state and (not parts or all(path.is_file() for path in self.parts(state.done)))
        return state if whole else None

    def begin(
        self, key: str, shape: tuple[int, int, int], spill_bytes: int, *, count: int | None = None, parts: bool = True
    ) -> tuple[LayerState, HiddenStates]:
        """Return an earlier attempt's state and hidden states [sequences, length, features], else new ones.

        After `count` layers the hidden states are not needed. `parts`: as for `load`.
        """
        # 1. Continue, if the hidden states are those that were saved.
        state = self.load(key, parts=parts)
        if state is not None:
            hidden = HiddenStates(shape, self.folder, state.done, spill_bytes)
            if state.done == count or hidden.restore(state.checksum):
                return state, hidden

        # 2. Else begin with an empty folder.
        self.clear()
        return LayerState(key=key), HiddenStates(shape, self.folder, 0, spill_bytes)

    def states_beside(self, shape: tuple[int, int, int], turn: int, spill_bytes: int) -> HiddenStates:
        """Return further hidden states of the run: those behind the layers as they are stored."""
        return HiddenStates(shape, self.folder, turn, spill_bytes, name="stored-")

    def clear(self) -> None:
        """Remove what an earlier attempt left."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def save(self, state: LayerState) -> None:
        """Write the state. Raises DiskFull or WorkError."""
        files.write(self.folder / STATE, state.model_dump_json())

    def __enter__(self) -> WorkFolder:
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(".*"):  # what a killed attempt was writing
            left.unlink()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove the folder once it has served; also when the disk is full, which frees some of it."""
        if kind is None or not self.resumable or issubclass(kind, DiskFull):
            shutil.rmtree(self.folder, ignore_errors=True)


def request_key(described: dict[str, Any], files: list[Path]) -> str:
    """Hash the request, the calibration data and versions as `described`, and the checkpoint's files by size and
    time."""
    stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(files)]
    return hashlib.sha256(json.dumps([ARITHMETIC, described, stamps], sort_keys=True, default=str).encode()).hexdigest()


@cache
def versions(*more: str) -> dict[str, str]:
    """Return the versions of the libraries that the bytes depend on, and of `more`; cached, since each takes
    milliseconds."""
    return {name: version(name) for name in (*VERSIONS, *more)}
