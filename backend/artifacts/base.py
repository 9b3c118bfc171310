"""What every place of artifacts promises, whether a folder or a bucket. Nothing bypasses it.

What lies in a place was put there once under an address of its own and never changes. Which addresses there are, and
which artifact names them, stands in the ledger (`store.artifact_contents`), so that nothing is taken away that somebody names or
is about to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from backend.domain.jobs.artifact import HeldContent, Manifest

Tell = Callable[[int, int], None]
"""Is told bytes done and bytes in all."""


def ignore_progress(done: int, total: int) -> None:
    """Tells nobody."""


class Ledger(Protocol):
    """What a publication says to the store while it goes on, in short transactions of its own."""

    def hold(self, place: str, sizes: Mapping[str, int], *, plain: bool = False) -> dict[str, HeldContent]:
        """An address in that place for each identity, with its bytes: that of the same content where it is there, else
        a new one that was never used, the identity itself where it is `plain` and free."""

    def arrived(self, addresses: Iterable[str]) -> None:
        """Their bytes are there, for others too."""


class Published(NamedTuple):
    """An artifact that is whole in its place. It counts once a row names `contents`, in one commit
    (`store.artifact_contents.link_contents`)."""

    manifest: Manifest
    address: str
    """Where its manifest is, which names all else."""
    contents: tuple[str, ...]


class ArtifactLocation(ABC):
    """`address` is that of the place, below which all others are. Besides what they name, methods raise OSError of a
    folder, and what `aws.s3.Bucket` does of a bucket."""

    address: str

    @abstractmethod
    def publish(self, staged: Path, artifact: str, ledger: Ledger, tell: Tell = ignore_progress) -> Published:
        """Verify the folder that a job made and put it here, its manifest last: a reader sees all or nothing. Called
        again after an interruption it goes on.

        Raises ArtifactCorrupt.
        """

    @abstractmethod
    def local(self, address: str) -> Path:
        """The folder on this machine where the artifact's files are, or will be once they are asked for."""

    @abstractmethod
    def outline(self, address: str, manifest: Manifest) -> Path:
        """That folder with at least the small files in it, configuration and tokenizer, for a page: with little
        patience.

        Raises ArtifactCorrupt.
        """

    @abstractmethod
    def use(self, address: str, artifact: str, tell: Tell = ignore_progress) -> AbstractContextManager[Path]:
        """That folder, whole and verified, for as long as it is used. Raises ArtifactCorrupt."""

    @abstractmethod
    def missing(self, address: str) -> int:
        """Bytes that `use` would have to fetch."""

    @abstractmethod
    def verify(self, address: str, manifest: Manifest, tell: Tell = ignore_progress) -> None:
        """Hash every byte where it lies. Raises ArtifactCorrupt."""

    @abstractmethod
    def remove(self, addresses: Iterable[str]) -> None:
        """Contents that the ledger has given up; those that are gone, whole or in part, are no trouble."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raises what stands in the way, which is a sentence of a WhetstoneError."""
