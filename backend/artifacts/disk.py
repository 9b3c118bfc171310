"""Artifacts in a folder of this machine, each in its own folder, from which it is served."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from backend import files
from backend.artifacts import artifact_folder
from backend.artifacts.base import ArtifactLocation, Ledger, Published, Tell, ignore_progress
from backend.domain.errors import ArtifactCorrupt
from backend.domain.jobs.artifact import Manifest


class FolderLocation(ArtifactLocation):
    """`kept` remembers which files were hashed already. The identity of a content is the artifact's id: all of it is in
    one."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self._verified = folder, path
        self.address = str(folder)

    def publish(self, staged: Path, artifact: str, ledger: Ledger, tell: Tell = ignore_progress) -> Published:
        if staged.exists():  # else an earlier supervisor published it and died before it could say so
            artifact_folder.verify(staged, artifact_folder.read_manifest(staged))
        size = sum(path.stat().st_size for path in staged.rglob("*") if path.is_file())
        (reserved,) = ledger.hold(self.address, {artifact: size}, plain=True).values()
        final = Path(reserved.address)
        if staged.exists():
            artifact_folder.publish(staged, final)
        manifest = artifact_folder.read_manifest(final)
        ledger.arrived([reserved.address])
        return Published(manifest, reserved.address, (reserved.address,))

    def local(self, address: str) -> Path:
        return Path(address)

    def outline(self, address: str, manifest: Manifest) -> Path:
        return Path(address)

    @contextmanager
    def use(self, address: str, artifact: str, tell: Tell = ignore_progress) -> Iterator[Path]:
        artifact_folder.verified(Path(address), artifact, self._verified)
        yield Path(address)

    def missing(self, address: str) -> int:
        return 0

    def verify(self, address: str, manifest: Manifest, tell: Tell = ignore_progress) -> None:
        artifact_folder.verify(Path(address), manifest)

    def remove(self, addresses: Iterable[str]) -> None:
        for final in map(Path, addresses):
            if final.parent != self.folder:  # a damaged row may name any folder
                raise ArtifactCorrupt(f"{final} is not in {self.folder}: nothing was removed.")
            artifact_folder.remove(final)

    def check_writable(self) -> None:
        with files.disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            probe = files.staging_name(self.folder / "probe")
            probe.write_bytes(b"whetstone")
            probe.unlink()
