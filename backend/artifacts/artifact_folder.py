"""Publishes and verifies artifact folders. Knows nothing of the store; S3 comes beside it later.

An artifact becomes visible by one rename of a folder whose every byte was hashed: nothing half-written is ever seen.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.errors import ArtifactCorrupt, Unreadable, WrittenByNewer
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.artifact import ArtifactFile, Manifest
from backend.domain.validation import read_stored

MANIFEST = "manifest.json"


def describe(folder: Path) -> list[ArtifactFile]:
    """Path, size and sha256 of every file below `folder`, the manifest left out, sorted by path."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return [
        ArtifactFile(path=path.relative_to(folder).as_posix(), size=path.stat().st_size, sha256=sha256(path))
        for path in files
    ]


def sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def served_files(variant: Variant) -> str | None:
    """SHA-256 over names and contents of what it is served from: weights, configuration and tokenizer, a draft's too.
    None of a URL; that of nothing where a folder is gone."""
    if variant.model_path is None:
        return None
    draft = variant.speculation.draft_path if variant.speculation else None
    digest = hashlib.sha256()
    if variant.gguf is not None:
        for path in sorted(Path(variant.gguf).parent.glob("*.gguf")):
            digest.update(f"{path.name} {sha256(path)}\n".encode())
        return digest.hexdigest()
    for folder in map(Path, filter(None, (variant.model_path, draft))):
        for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.json"), *folder.glob("*.jinja")]):
            digest.update(f"{path.name} {sha256(path)}\n".encode())
    return digest.hexdigest()


def served_of(manifest: Manifest, variant: Variant) -> str:
    """Compute the digest of `served_files` from a manifest, without the files."""
    digest = hashlib.sha256()
    if manifest.gguf is not None:
        file = next(file for file in manifest.files if file.path == manifest.gguf["file"])
        digest.update(f"{file.path.rpartition('/')[2]} {file.sha256}\n".encode())
        return digest.hexdigest()
    for folder in ("model", *(["draft"] if variant.speculation and variant.speculation.draft_path else [])):
        for file in sorted(manifest.files, key=lambda file: file.path):
            path, _, name = file.path.rpartition("/")
            if path == folder and name.endswith((".safetensors", ".json", ".jinja")):
                digest.update(f"{name} {file.sha256}\n".encode())
    return digest.hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    files.write(folder / MANIFEST, manifest.model_dump_json(indent=1))


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of an artifact's folder. Raises ArtifactCorrupt if it cannot be read, WrittenByNewer."""
    try:
        return read_stored(Manifest, (folder / MANIFEST).read_bytes(), f"the manifest of {folder.name}")
    except WrittenByNewer:
        raise
    except (OSError, ValueError, Unreadable) as error:
        raise ArtifactCorrupt(
            f"{folder.name} has no readable manifest ({type(error).__name__}): run the job again."
        ) from error


def verify(folder: Path, manifest: Manifest) -> None:
    """Re-hash every file. Raises ArtifactCorrupt naming the first file that is missing, changed, extra or a link."""
    _verify(folder, manifest, {})


def verified(folder: Path, artifact: str, path: Path) -> Manifest:
    """The manifest of the artifact of that id, whose files are what its id was made of.

    A file is hashed once: `kept`, a folder, remembers its inode, size and mtime. Raises ArtifactCorrupt as `verify`,
    and where the manifest is another artifact's.
    """
    manifest = read_manifest(folder)
    if manifest.id != artifact:
        raise ArtifactCorrupt(
            f"The manifest of {artifact} is not the one it was published with: run the optimize job again."
        )
    # Hash only files that changed since the last time.
    memory = path / f"{artifact}.json"
    stamps = _verify(folder, manifest, _remembered(memory))
    memory.parent.mkdir(parents=True, exist_ok=True)
    files.write(memory, json.dumps(stamps), flush=False)
    return manifest


def _remembered(memory: Path) -> dict[str, list[Any]]:
    try:
        stamps = json.loads(memory.read_bytes())
    except (OSError, ValueError):
        return {}
    return stamps if isinstance(stamps, dict) else {}


def _verify(folder: Path, manifest: Manifest, stamps: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Verify a folder; `stamps` and the result hold inode, size, mtime and sha256 of each file when it was hashed."""
    # 1. List the files; a link is never part of an artifact.
    named = {file.path: file for file in manifest.files}
    present = set()
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise ArtifactCorrupt(
                f"{path.relative_to(folder)} of {folder.name} is a link, which no artifact has: remove it."
            )
        if path.is_file():
            present.add(path.relative_to(folder).as_posix())
    # 2. Hash each named file, unless it is unchanged since the last time.
    hashed = {}
    for name, file in named.items():
        if name not in present:
            raise ArtifactCorrupt(f"{name} of {folder.name} is missing: run the optimize job again.")
        status = (folder / name).stat()
        stamp = [status.st_ino, status.st_size, status.st_mtime_ns]
        before = stamps.get(name)
        hashed[name] = before if isinstance(before, list) and before[:3] == stamp else [*stamp, sha256(folder / name)]
        if status.st_size != file.size or hashed[name][3:] != [file.sha256]:
            raise ArtifactCorrupt(
                f"{name} of {folder.name} is not the file the manifest describes: run the optimize job again."
            )
    # 3. Nothing else may be there.
    extra = sorted(present - set(named) - {MANIFEST})
    if extra:
        raise ArtifactCorrupt(f"{extra[0]} of {folder.name} is not in the manifest: something else wrote there.")
    return hashed


def publish(staged: Path, destination: Path) -> Path:
    """Move a verified folder to its final place by one rename; the same content published twice stays as it is."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    if destination.exists():
        shutil.rmtree(staged)
        return destination
    staged.rename(destination)
    for path in destination.rglob("*"):
        if path.is_file():
            path.chmod(0o444)
    return destination


def remove(folder: Path) -> None:
    """Delete by renaming aside first, so that a half-deleted artifact is never seen under its name; also what was left
    aside."""
    aside = folder.with_name(f".{folder.name}.deleted")
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    if aside.exists():
        shutil.rmtree(aside)
