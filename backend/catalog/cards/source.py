"""Sources of a model's files: names, sizes and ranges of bytes, so that a card is read alike from disk, hub and S3.

Knows nothing of what is in the files.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path

from backend.domain.errors import InvalidModel
from backend.transfer import Digest, SourceDropped

READ_PAUSES = (0.5, 2.0)
"""Seconds before each further try of a small read."""


class ModelSource(ABC):
    """The files at the top level of one model. `name` is what messages call it."""

    name: str
    readers: int = 1
    """Small reads that run in parallel."""

    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """Bytes by file name."""

    @abstractmethod
    def read(self, file: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes from `start` up to `end`, or fewer where the file ends before. Raises InvalidModel where it is
        unreadable."""

    def read_all(self, ranges: list[tuple[str, int]]) -> list[bytes]:
        """The first bytes of several files, as many as asked of each, at most `readers` at once."""
        if self.readers == 1:
            return [self.read(file, 0, count) for file, count in ranges]
        with ThreadPoolExecutor(self.readers) as pool:
            return list(pool.map(lambda one: self.read(one[0], 0, one[1]), ranges))


class RemoteSource(ModelSource):
    """A model elsewhere. `revision` pins it: what is read later is what was read now, or is refused.

    `id` names the model without its revision; `licence` and `gated` are what its source says.
    """

    readers = 16
    id: str
    revision: str
    licence: str | None = None
    gated: bool = False

    def read(self, file: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a range; a broken connection is tried again, a whole file is requested once.

        Raises SourceDropped where it keeps breaking, and what the source raises.
        """
        if start == 0 and end is None:
            if file not in self._read:
                self._read[file] = self._patiently(file, start, end)
            return self._read[file]
        return self._patiently(file, start, end)

    @cached_property
    def _read(self) -> dict[str, bytes]:
        return {}

    def _patiently(self, file: str, start: int, end: int | None) -> bytes:
        for pause in READ_PAUSES:
            try:
                return self.fetch(file, start, end)
            except SourceDropped:
                time.sleep(pause)
        return self.fetch(file, start, end)

    @abstractmethod
    def fetch(self, file: str, start: int, end: int | None) -> bytes:
        """Try to read once. Raises SourceDropped if another try may succeed."""

    @abstractmethod
    def digest(self, file: str) -> Digest | None:
        """The file's checksum where the source states one. Raises SourceDropped."""

    @abstractmethod
    def stream(self, file: str, start: int) -> Iterator[bytes]:
        """The bytes from `start` to the end. Raises SourceDropped where it may be tried again, else another
        WhetstoneError."""


class FolderSource(ModelSource):
    """A folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, str(folder)

    def sizes(self) -> Mapping[str, int]:
        try:
            return {path.name: path.stat().st_size for path in sorted(self.folder.iterdir()) if path.is_file()}
        except OSError as error:
            raise InvalidModel(f"{self.folder} cannot be read ({error.strerror}): check its permissions.") from None

    def read(self, file: str, start: int = 0, end: int | None = None) -> bytes:
        try:
            with (self.folder / file).open("rb") as opened:
                opened.seek(start)
                return opened.read(-1 if end is None else max(0, end - start))
        except OSError as error:
            raise InvalidModel(
                f"{file} cannot be read ({error.strerror}): check the file and its permissions."
            ) from None
