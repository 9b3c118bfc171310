"""What left an original's last layer on a held-out text, kept from one scoring to the next.

The distributions over the vocabulary are made of these states by one product, and are vocabulary / hidden times as
large: for SmolLM2-135M 28 MB are kept in place of 2.4 GB, whatever the vocabulary.
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
"""All that is kept; what was used longest ago goes first."""
ARITHMETIC = 2
"""Raised where the same files and tokens come to other states."""


def cached_states(
    folder: Path | None, model: Path, tokens: torch.Tensor, compute: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """What `compute` gives (fp32, on the processor) for `tokens` through the model in that folder, from the file that
    an earlier scoring left in `folder` where there is one; without a `folder` nothing is kept."""
    if folder is None:
        return compute()
    path = folder / f"{_key(model, tokens)}.npy"
    found = _read(path)
    if found is None:
        found = compute()
        _keep(path, found)
    return found


def _key(model: Path, tokens: torch.Tensor) -> str:
    """By content: of the weights, the configuration, the text as token ids, and the libraries."""
    found = hashlib.sha256(
        json.dumps([ARITHMETIC, version("torch"), version("transformers"), list(tokens.shape)]).encode()
    )
    announcing = [model / name for name in SIDE_FILES if (model / name).is_file()]
    for path in (model / "config.json", *announcing, *weight_files(model)):
        with path.open("rb") as source:
            found.update(hashlib.file_digest(source, "sha256").digest())
    found.update(tokens.numpy().tobytes())
    return found.hexdigest()


def _read(path: Path) -> torch.Tensor | None:
    """In a map of the file: pages come as they are read."""
    import numpy
    import torch

    try:
        found = torch.from_numpy(numpy.load(path, mmap_mode="c", allow_pickle=False))
        path.touch()
    except (OSError, ValueError, EOFError):
        return None
    return found


def _keep(path: Path, found: torch.Tensor) -> None:
    """Nothing where it is too large or the disk is full: it is computed again then."""
    import numpy

    if found.nbytes > CAP_BYTES:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent, CAP_BYTES - found.nbytes)
        with files.staged_file(path, flush=False) as staged, staged.open("wb") as file:
            numpy.save(file, found.numpy(), allow_pickle=False)
    except (DiskFull, WorkError, OSError):
        return


def _make_room(folder: Path, most: int) -> None:
    """Remove what was used longest ago until the rest is at most so many bytes."""
    kept = sorted(((path.stat().st_mtime_ns, path.stat().st_size, path) for path in folder.glob("*.npy")), reverse=True)
    held = 0
    for _, size, path in kept:
        held += size
        if held > most:
            path.unlink(missing_ok=True)
