"""The cache of compiled results by key, in a folder or a bucket: `entries/KEY.json`, written last, and
`files/KEY/SHA256`.

A reader sees an entry whole or not at all, also while two write one: a file's name is its content, and two compilations
of one key need not come to the same bytes. Every file is held to its SHA-256 when it is fetched, and an entry that is
not what it says is removed. They can be made again, so no ledger counts them: they are a cache, not artifacts.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from backend import files
from backend.artifacts import artifact_folder
from backend.artifacts.bucket import SCHEME
from backend.aws.s3 import ConnectionLost, ObjectChanged
from backend.domain.neuron.compile_cache import CacheEntry
from backend.settings import Settings

ENTRIES, FILES = "entries", "files"
TRIES = 5
"""Tries of a download that breaks off; each continues where the last one ended."""


class _Disk:
    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        return sorted(f"{ENTRIES}/{path.name}" for path in (self.root / ENTRIES).glob("*.json"))

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        files.write(self.root / name, content)

    def put(self, path: Path, name: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        files.copy(path, self.root / name)

    def get(self, name: str, size: int, path: Path) -> None:
        shutil.copyfile(self.root / name, path)

    def remove(self, names: list[str]) -> None:
        for name in names:
            (self.root / name).unlink(missing_ok=True)


class _Bucket:
    def __init__(self, address: str) -> None:
        from backend.aws.objects import Objects

        name, _, self.prefix = address.removeprefix(SCHEME).partition("/")
        self.objects = Objects(name)

    def names(self) -> list[str]:
        s3_objects = self.objects.objects(f"{self.prefix}/{ENTRIES}/")
        return sorted(
            stored.key.removeprefix(f"{self.prefix}/") for stored in s3_objects if stored.key.endswith(".json")
        )

    def read(self, name: str) -> bytes:
        try:
            return self.objects.get_bytes(f"{self.prefix}/{name}")
        except ObjectChanged:
            raise FileNotFoundError(name) from None

    def write(self, name: str, content: bytes) -> None:
        self.objects.put_bytes(f"{self.prefix}/{name}", content)

    def put(self, path: Path, name: str) -> None:
        self.objects.put(path, f"{self.prefix}/{name}")

    def get(self, name: str, size: int, path: Path) -> None:
        with path.open("wb") as sink:
            for last in (*[False] * (TRIES - 1), True):
                try:
                    for chunk in self.objects.stream_from(f"{self.prefix}/{name}", sink.tell(), size):
                        sink.write(chunk)
                    return
                except ObjectChanged:
                    raise FileNotFoundError(name) from None
                except ConnectionLost:
                    if last:
                        raise

    def remove(self, names: list[str]) -> None:
        self.objects.remove(f"{self.prefix}/{name}" for name in names)


class CompiledCache:
    """Below `address`, a folder or s3://BUCKET/PREFIX. Raises OSError of a folder, and what `aws.s3.Bucket` does of a
    bucket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._store = _Bucket(address) if address.startswith(SCHEME) else _Disk(Path(address))

    def entries(self) -> list[CacheEntry]:
        """Return the entries that can be read; others were not written by us, or were removed meanwhile."""
        entries = []
        for name in self._store.names():
            try:
                entries.append(CacheEntry.model_validate_json(self._store.read(name)))
            except (ValidationError, FileNotFoundError):
                continue
        return entries

    def put(
        self, key: str, model: str, fields: Mapping[str, Any], folder: Path, versions: Mapping[str, str]
    ) -> CacheEntry:
        """Its files first, the entry last. Where another was faster with the same key, the later entry counts, with its
        files."""
        described = artifact_folder.describe(folder)
        for file in described:
            self._store.put(folder / file.path, f"{FILES}/{key}/{file.sha256}")
        named = {file.path: (file.size, file.sha256) for file in described}
        entry = CacheEntry(key=key, model=model, fields=dict(fields), files=named, versions=dict(versions))
        self._store.write(f"{ENTRIES}/{key}.json", entry.model_dump_json(indent=1).encode())
        return entry

    def fetch(self, key: str, folder: Path) -> CacheEntry | None:
        """Fill `folder`, which appears at once and whole; None where there is no such entry, or a damaged one, which
        goes."""
        entry = next((candidate for candidate in self.entries() if candidate.key == key), None)
        if entry is None:
            return None
        with files.staged_folder(folder) as staging:
            whole = all(self._fetched(entry, path, staging) for path in entry.files)
            if not whole:
                self.remove(entry)
        if not whole:
            shutil.rmtree(folder)
            return None
        return entry

    def remove(self, entry: CacheEntry) -> None:
        """The entry first, so that nobody finds it without its files; one that another wrote meanwhile stays."""
        name = f"{ENTRIES}/{entry.key}.json"
        try:
            same = CacheEntry.model_validate_json(self._store.read(name)) == entry
        except (ValidationError, FileNotFoundError):
            same = True
        if same:
            self._store.remove([name])
            self._store.remove([f"{FILES}/{entry.key}/{sha256}" for _, sha256 in entry.files.values()])

    def _fetched(self, entry: CacheEntry, path: str, folder: Path) -> bool:
        size, sha256 = entry.files[path]
        if not (folder / path).resolve().is_relative_to(folder.resolve()):  # written by whoever may write to the bucket
            return False
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._store.get(f"{FILES}/{entry.key}/{sha256}", size, folder / path)
        except FileNotFoundError:
            return False
        return artifact_folder.sha256(folder / path) == sha256


def open_cache(settings: Settings) -> CompiledCache:
    """Below the place of artifacts where that is a bucket, so that all machines share it; else in the home's cache."""
    store = settings.artifact_store or ""
    return CompiledCache(
        f"{store.rstrip('/')}/compiled" if store.startswith(SCHEME) else str(settings.cache / "compiled")
    )


def graphs_folder(settings: Settings) -> Path:
    """The compiler's own cache of graphs on this machine."""
    return settings.cache / "neuron-compile-cache"
