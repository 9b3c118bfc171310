"""Caches the hidden states after an original's last layer on a held-out text, from one scoring to the next.

One product turns these states into the distributions over the vocabulary, which are vocabulary / hidden times as large:
for SmolLM2-135M 28 MB are stored instead of 2.4 GB.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from backend import files
from backend.domain.errors import DiskFull, WorkError
from backend.domain.model.announced_quantization import SIDE_FILES
from backend.layered.weight_source import weight_files

if TYPE_CHECKING:
    import torch

CAP_BYTES = 4_000_000_000
"""Most bytes of the cache; the least recently used entries are removed first."""
ARITHMETIC = 2
"""Version of the arithmetic: increase it when the same files and tokens give other states."""


def cached_states(
    folder: Path | None, model: Path, tokens: torch.Tensor, compute: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """Return the states of `tokens` through `model`, from the cache in `folder` or by `compute`.

    `compute` returns fp32 on the processor. Without a `folder` nothing is cached.
    """
    if folder is None:
        return compute()
    path = folder / f"{_key(model, tokens)}.npy"
    states = _read(path)
    if states is None:
        states = compute()
        _write(path, states)
    return states


def _key(model: Path, tokens: torch.Tensor) -> str:
    """Return a hash of the weights, the configuration, the token ids and the versions of the libraries."""
    digest = hashlib.sha256(
        json.dumps([ARITHMETIC, version("torch"), version("transformers"), list(tokens.shape)]).encode()
    )
    announcing = [model / name for name in SIDE_FILES if (model / name).is_file()]
    for path in (model / "config.json", *announcing, *weight_files(model)):
        with path.open("rb") as source:
            digest.update(hashlib.file_digest(source, "sha256").digest())
    digest.update(tokens.numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path) -> torch.Tensor | None:
    """Map the file into memory; pages are read when they are used."""
    import numpy
    import torch

    try:
        states = torch.from_numpy(numpy.load(path, mmap_mode="c", allow_pickle=False))
        path.touch()
    except (OSError, ValueError, EOFError):
        return None
    return states


def _write(path: Path, states: torch.Tensor) -> None:
    """Write the states, unless they are too large or the disk is full: then they are computed again next time."""
    import numpy

    if states.nbytes > CAP_BYTES:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent, CAP_BYTES - states.nbytes)
        with files.staged_file(path, flush=False) as staged, staged.open("wb") as file:
            numpy.save(file, states.numpy(), allow_pickle=False)
    except (DiskFull, WorkError, OSError):
        return


def _make_room(folder: Path, most: int) -> None:
    """Remove the least recently used files until the rest has at most `most` bytes."""
    by_last_use = sorted(
        ((path.stat().st_mtime_ns, path.stat().st_size, path) for path in folder.glob("*.npy")), reverse=True
    )
    total = 0
    for _, size, path in by_last_use:
        total += size
        if total > most:
            path.unlink(missing_ok=True)
