"""Hidden states of all calibration sequences between two layers, in memory or, when large, in mapped files.

Two buffers take turns, so that what entered a layer stays whole until the layer is done. Knows no model.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from backend import files
from backend.domain.needs.job_memory import SPILL_BYTES

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 24


class HiddenStates:
    """Two buffers, `entering` and `leaving` [sequences, length, features] fp32; `turn` is the number of layers done.

    `name` tells the files from those of others in the folder.
    """

    def __init__(
        self, shape: tuple[int, int, int], folder: Path, turn: int = 0, spill_bytes: int = SPILL_BYTES, name: str = ""
    ) -> None:
        self.shape, self.folder, self.turn, self.name = shape, folder, turn, name
        self.spilled = 4 * shape[0] * shape[1] * shape[2] > spill_bytes
        self._buffers = [self._buffer(0), self._buffer(1)]

    def _buffer(self, parity: int) -> torch.Tensor:
        import torch

        if not self.spilled:
            # Memory that a GPU reads itself is copied several times as fast.
            return torch.empty(self.shape, pin_memory=torch.cuda.is_available())
        return mapped_tensor(self._path(parity), self.shape, torch.float32, spill_bytes=0)

    def _path(self, parity: int) -> Path:
        """`mapped-` is the channel's word for what is changed in place."""
        return self.folder / f"{'mapped' if self.spilled else 'hidden'}-{self.name}{parity}.bin"

    @property
    def entering(self) -> torch.Tensor:
        return self._buffers[self.turn % 2]

    @property
    def leaving(self) -> torch.Tensor:
        return self._buffers[(self.turn + 1) % 2]

    def advance(self) -> None:
        """Let what left this layer enter the next."""
        self.turn += 1

    def save(self) -> int:
        """Write `entering` to its file and return its checksum. Raises DiskFull or WorkError."""
        if not self.spilled:
            with files.staged_file(self._path(self.turn % 2)) as staged:
                self.entering.numpy().tofile(staged)
        return self.checksum()

    def restore(self, checksum: int) -> bool:
        """Read `entering` from its file; False where that is not what was saved."""
        import numpy
        import torch

        path = self._path(self.turn % 2)
        if not self.spilled:
            if not path.is_file() or path.stat().st_size != self.entering.nbytes:
                return False
            self.entering.copy_(torch.from_numpy(numpy.fromfile(path, dtype=numpy.float32)).view(self.shape))
        return self.checksum() == checksum

    def checksum(self) -> int:
        """CRC-32 of `entering`."""
        view = self.entering.numpy().reshape(-1).view("uint8")
        checksum = 0
        for start in range(0, len(view), CHUNK):
            checksum = zlib.crc32(view[start : start + CHUNK].data, checksum)
        return checksum


def mapped_tensor(path: Path, shape: Sequence[int], dtype: torch.dtype, *, spill_bytes: int) -> torch.Tensor:
    """Return an empty tensor in memory, or, above `spill_bytes`, in a file mapped into it. Raises DiskFull or
    WorkError."""
    import torch

    count = math.prod(shape)
    if count * dtype.itemsize <= spill_bytes:
        return torch.empty(*shape, dtype=dtype)
    with files.disk_errors(path):
        _reserve(path, count * dtype.itemsize)
        return torch.from_file(str(path), shared=True, size=count, dtype=dtype).view(*shape)


def _reserve(path: Path, size: int) -> None:
    """Make the file that large now: a full disk found later, through the map, would end the process without a word."""
    import os
    import shutil

    if path.exists() and path.stat().st_size == size:
        return
    if shutil.disk_usage(path.parent).free < size:
        raise files.disk_full(path)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
