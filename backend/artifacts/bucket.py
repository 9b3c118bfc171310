"""Artifacts in a bucket: each file once under its SHA-256, whichever artifacts name it, and a manifest for each,
written last.

`PREFIX/contents/SHA256.WORD` holds a file's bytes, `PREFIX/artifacts/ID.WORD` the manifest and where its contents are.
The word is a new one for each upload, so that what was given up is never the same object as what came later (decision
0024).
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from backend import files, transfer
from backend.artifacts import artifact_folder
from backend.artifacts.base import ArtifactLocation, Ledger, Published, Tell, ignore_progress
from backend.artifacts.cache import Cache
from backend.aws.objects import Objects
from backend.aws.s3 import ObjectChanged
from backend.domain.errors import ArtifactCorrupt, DownloadFailed, RequestError
from backend.domain.jobs.artifact import ArtifactFile, Manifest
from backend.transfer import Digest, SourceDropped

SCHEME = "s3://"
CONTENTS, ARTIFACTS = "contents", "artifacts"
SMALL_BYTES = 32 << 20
"""Files up to this size that hold no weights are part of an outline; tokenizers are at most about half as large."""


NAME_DIGITS = 16
"""Hex digits of its SHA-256 in a manifest's name."""


class _Stored(NamedTuple):
    """A stored manifest, with the key of each content by its SHA-256."""

    manifest: Manifest
    keys: Mapping[str, str]

    def sizes(self) -> dict[str, int]:
        return {file.path: file.size for file in self.manifest.files}


def small_files(manifest: Manifest) -> dict[str, int]:
    """Return the bytes of each file that an outline has, by path."""
    loose = [file for file in manifest.files if file.path.startswith(("model/", "draft/"))]
    return {
        file.path: file.size for file in loose if file.size <= SMALL_BYTES and not file.path.endswith(".safetensors")
    }


class BucketLocation(ArtifactLocation):
    """`address` is s3://BUCKET/PREFIX. Raises RequestError where it names no bucket."""

    def __init__(self, address: str, cache: Cache, path: Path) -> None:
        bucket, _, prefix = address.removeprefix(SCHEME).partition("/")
        if not bucket:
            raise RequestError(f"WHETSTONE_ARTIFACTS is {address}: write s3://BUCKET/PREFIX, or the path of a folder.")
        self.address = f"{SCHEME}{bucket}/{prefix.strip('/')}".rstrip("/")
        self._bucket, self._cache, self._verified = bucket, cache, path

    @cached_property
    def _objects(self) -> Objects:
        return Objects(self._bucket)

    @cached_property
    def _hurried(self) -> Objects:
        """A client with fewer tries, for downloads, which try again themselves, and for pages."""
        return Objects(self._bucket, tries=2)

    def publish(self, staged: Path, artifact: str, ledger: Ledger, tell: Tell = ignore_progress) -> Published:
        manifest = artifact_folder.read_manifest(staged)
        artifact_folder.verify(staged, manifest)
        by_hash = {file.sha256: file for file in manifest.files}
        reserved = ledger.hold(f"{self.address}/{CONTENTS}", {sha: file.size for sha, file in by_hash.items()})
        total, done = sum(file.size for file in by_hash.values()), 0
        for sha, (address, arrived) in reserved.items():
            # a restored ledger may be too old
            if not (arrived and self._objects.has(self._key(address), by_hash[sha].size)):
                self._objects.put(staged / by_hash[sha].path, self._key(address), partial(_tell, tell, done, total))
                ledger.arrived([address])
            done += by_hash[sha].size
            tell(done, total)
        keys = {sha: self._key(content.address) for sha, content in reserved.items()}
        address = self._put_manifest(artifact, manifest, keys, ledger)
        self._cache.adopt(self._name(address), staged)
        return Published(manifest, address, (address, *(content.address for content in reserved.values())))

    def _put_manifest(self, artifact: str, manifest: Manifest, keys: Mapping[str, str], ledger: Ledger) -> str:
        document = {"manifest": manifest.model_dump(mode="json"), "contents": keys}
        content = json.dumps(document, sort_keys=True).encode()
        identity = f"{artifact}.{hashlib.sha256(content).hexdigest()[:NAME_DIGITS]}"
        (reserved,) = ledger.hold(f"{self.address}/{ARTIFACTS}", {identity: len(content)}).values()
        if not (reserved.arrived and self._objects.has(self._key(reserved.address), len(content))):
            self._objects.put_bytes(self._key(reserved.address), content)
            ledger.arrived([reserved.address])
        return reserved.address

    def local(self, address: str) -> Path:
        return self._cache.folder_of(self._name(address))

    def outline(self, address: str, manifest: Manifest) -> Path:
        folder, sizes = self.local(address), small_files(manifest)
        if not all((folder / name).is_file() for name in sizes):
            stored = self._stored(address, self._hurried)
            with self._cache.filling(self._name(address)), files.disk_errors(folder):
                transfer.download(
                    _Contents(self._hurried, stored), sizes, folder, lambda fetched: None, patience_s=(0.5,)
                )
        return folder

    @contextmanager
    def use(self, address: str, artifact: str, tell: Tell = ignore_progress) -> Iterator[Path]:
        name, folder = self._name(address), self.local(address)
        for again in (True, False):
            with self._whole(address, name, tell):
                try:
                    artifact_folder.verified(folder, artifact, self._verified)
                except ArtifactCorrupt:
                    if not again:
                        raise
                else:
                    yield folder
                    return
            self._cache.drop(name)  # a bit of this disk: what the bucket has counts

    @contextmanager
    def _whole(self, address: str, name: str, tell: Tell) -> Iterator[None]:
        while True:
            self._fill(address, name, self.local(address), tell)
            with self._cache.using(name):
                if self._cache.is_whole(name):  # else it was given up between the two
                    yield
                    return

    def _fill(self, address: str, name: str, folder: Path, tell: Tell) -> None:
        if self._cache.is_whole(name):
            return
        stored = self._stored(address)
        sizes = stored.sizes()
        self._cache.make_room(sum(sizes.values()))
        with self._cache.filling(name):
            if self._cache.is_whole(name):
                return
            left = sum(sizes.values()) - transfer.present(folder, sizes)
            source = _Contents(self._hurried, stored)
            with files.disk_errors(folder):
                try:
                    transfer.download(source, sizes, folder, lambda fetched: tell(fetched, left))
                except DownloadFailed:  # a bit was changed on the way, or its connection was away for long
                    transfer.download(source, sizes, folder, lambda fetched: tell(fetched, left))
            artifact_folder.write_manifest(folder, stored.manifest)

    def missing(self, address: str) -> int:
        if self._cache.is_whole(self._name(address)):
            return 0
        sizes = self._stored(address).sizes()
        return sum(sizes.values()) - transfer.present(self.local(address), sizes)

    def verify(self, address: str, manifest: Manifest, tell: Tell = ignore_progress) -> None:
        stored = self._stored(address)
        if stored.manifest.id != manifest.id:
            raise ArtifactCorrupt(f"{address} is the manifest of {stored.manifest.id}, not of {manifest.id}.")
        source = _Contents(self._objects, stored)
        done, total = 0, sum(file.size for file in manifest.files)
        for file in manifest.files:
            digest = hashlib.sha256()
            for chunk in source.whole(file):
                digest.update(chunk)
            if digest.hexdigest() != file.sha256:
                raise ArtifactCorrupt(
                    f"{file.path} of {manifest.id} in {self.address} is not the file the manifest describes."
                )
            done += file.size
            tell(done, total)

    def remove(self, addresses: Iterable[str]) -> None:
        given_up = list(addresses)
        if given_up:
            self._objects.remove(self._key(address) for address in given_up)
        for name in (self._name(address) for address in given_up if address.startswith(f"{self.address}/{ARTIFACTS}/")):
            if self._cache.folder_of(name).exists():
                self._cache.drop(name)

    def check_writable(self) -> None:
        self._hurried.check_writable(self._key(f"{self.address}/probe.{secrets.token_hex(4)}"))

    def _stored(self, address: str, objects: Objects | None = None) -> _Stored:
        try:
            document = json.loads(self._sound(address, objects or self._objects))
            return _Stored(Manifest.model_validate(document["manifest"]), dict(document["contents"]))
        except ObjectChanged:
            raise ArtifactCorrupt(f"{address} is not there any more: run the optimize job again.") from None
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactCorrupt(
                f"{address} is no manifest ({type(error).__name__}): run the optimize job again."
            ) from None

    def _sound(self, address: str, objects: Objects) -> bytes:
        """Return the bytes of the manifest, checked against the SHA-256 in its name; two tries."""
        content = objects.get_bytes(self._key(address))
        if hashlib.sha256(content).hexdigest()[:NAME_DIGITS] != self._name(address).split(".")[1]:
            content = objects.get_bytes(self._key(address))
        return content

    def _key(self, address: str) -> str:
        return address.removeprefix(f"{SCHEME}{self._bucket}/")

    def _name(self, address: str) -> str:
        return address.rpartition("/")[2]


def _tell(tell: Tell, before: int, total: int, sent: int) -> None:
    tell(before + sent, total)


class _Contents:
    """The files of an artifact as a source of a download."""

    def __init__(self, objects: Objects, stored: _Stored) -> None:
        self._objects, self._keys, self.name = objects, stored.keys, stored.manifest.id
        self._files = {file.path: file for file in stored.manifest.files}

    def digest(self, file: str) -> Digest | None:
        return Digest("sha256", self._files[file].sha256)

    def stream(self, file: str, start: int) -> Iterator[bytes]:
        entry = self._files[file]
        try:
            yield from self._objects.stream_from(self._keys[entry.sha256], start, entry.size)
        except (ObjectChanged, KeyError):
            raise ArtifactCorrupt(
                f"{file} of {self.name} is not in its bucket any more: run the optimize job again."
            ) from None

    def whole(self, file: ArtifactFile) -> Iterator[bytes]:
        """Yield the whole file, over as many connections as needed while each brings some bytes."""
        position = before = 0
        while position < file.size:
            try:
                for chunk in self.stream(file.path, position):
                    position += len(chunk)
                    yield chunk
            except SourceDropped:
                if position == before:
                    raise
            if position == before:
                raise ArtifactCorrupt(
                    f"{file.path} of {self.name} ends after {position} of {file.size} bytes: run the job again."
                )
            before = position
