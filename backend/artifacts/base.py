"""The interface of a location of artifacts, a folder or a bucket. Nothing bypasses it.

Contents are stored once, under an address of their own, and never change. The ledger knows the addresses and which
artifact names them (`store.artifact_contents`), so that nothing is taken away that somebody names or is about to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from backend.domain.jobs.artifact import HeldContent, Manifest

Tell = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


def ignore_progress(done: int, total: int) -> None:
    """Ignore the progress."""


class Ledger(Protocol):
    """Records in the store what a publication has uploaded, in short transactions of its own."""

    def hold(self, place: str, sizes: Mapping[str, int], *, plain: bool = False) -> dict[str, HeldContent]:
        """Reserve an address for each identity with its bytes: that of the same content if it is stored, else one that
        was never used, or the identity itself if `plain` and free."""

    def arrived(self, addresses: Iterable[str]) -> None:
        """Record that the bytes at these addresses are complete and may be shared."""


class Published(NamedTuple):
    """An artifact that was written in full. It counts once a row of the store names `contents`, in one commit
    (`store.artifact_contents.link_contents`)."""

    manifest: Manifest
    address: str
    """Address of its manifest, which names all other files."""
    contents: tuple[str, ...]


class ArtifactLocation(ABC):
    """A folder or bucket of artifacts; all their addresses begin with `address`. Besides what they name, methods raise
    OSError of a folder, and what `aws.s3.Bucket` does of a bucket."""

    address: str

    @abstractmethod
    def publish(self, staged: Path, artifact: str, ledger: Ledger, tell: Tell = ignore_progress) -> Published:
        """Verify the folder that a job made and put it here, its manifest last: a reader sees all or nothing. Called
        again after an interruption it goes on.

        Raises ArtifactCorrupt.
        """

    @abstractmethod
    def local(self, address: str) -> Path:
        """Return the folder on this machine where the artifact's files are, or will be after `use`."""

    @abstractmethod
    def outline(self, address: str, manifest: Manifest) -> Path:
        """Return that folder with at least its small files, configuration and tokenizer, after few tries: a page waits
        for it.

        Raises ArtifactCorrupt.
        """

    @abstractmethod
    def use(self, address: str, artifact: str, tell: Tell = ignore_progress) -> AbstractContextManager[Path]:
        """Yield that folder, whole and verified, and protect it while it is used. Raises ArtifactCorrupt."""

    @abstractmethod
    def missing(self, address: str) -> int:
        """Return the bytes that `use` would fetch."""

    @abstractmethod
    def verify(self, address: str, manifest: Manifest, tell: Tell = ignore_progress) -> None:
        """Hash every stored byte. Raises ArtifactCorrupt."""

    @abstractmethod
    def remove(self, addresses: Iterable[str]) -> None:
        """Erase contents that the ledger no longer needs; missing ones are ignored."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raise a WhetstoneError that says why nothing can be written here."""
