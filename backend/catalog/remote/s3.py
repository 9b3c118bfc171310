"""A model below an s3:// prefix: the objects there, as they are now. Knows nothing of boto3."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from backend import settings as configuration
from backend.aws.s3 import Bucket
from backend.catalog.cards.source import RemoteSource
from backend.domain.errors import AccessRefused, UnknownModel
from backend.transfer import Digest

SCHEME = "s3://"


class S3Source(RemoteSource):
    """`uri` is `s3://bucket/prefix`. `revision` is a sha256 over the objects' names, sizes and tags.

    Raises UnknownModel (no bucket, or nothing there), AccessRefused, SourceUnreachable, SourceDropped.
    """

    def __init__(self, uri: str) -> None:
        bucket, _, prefix = uri.removeprefix(SCHEME).partition("/")
        prefix = prefix.strip("/")
        if not bucket:
            raise UnknownModel("An S3 model is given as s3://bucket/prefix, the folder that holds its config.json.")
        self.id = self.name = f"{SCHEME}{bucket}" + (f"/{prefix}" if prefix else "")
        if not configuration.load().may_import_from(self.name.removeprefix(SCHEME)):
            raise AccessRefused(
                f"{self.name} is not open to those who share this studio: list its bucket or prefix in "
                "WHETSTONE_SHARED_BUCKETS where `whetstone up` is started."
            )
        # The files directly below the prefix; their tags stand for a revision.
        self._bucket = Bucket(bucket)
        s3_objects = self._bucket.objects(f"{prefix}/" if prefix else "")
        self._objects = {one.key.rpartition("/")[2]: one for one in s3_objects if not one.key.endswith("/")}
        if not self._objects:
            raise UnknownModel(f"There is nothing directly below {self.name}/: give the prefix that holds config.json.")
        listed = sorted((name, one.size, one.tag) for name, one in self._objects.items())
        self.revision = hashlib.sha256(repr(listed).encode()).hexdigest()

    def sizes(self) -> Mapping[str, int]:
        return {name: one.size for name, one in self._objects.items()}

    def digest(self, file: str) -> Digest | None:
        stated = self._bucket.checksum(self._objects[file])
        return Digest(*stated) if stated else None

    def fetch(self, file: str, start: int, end: int | None) -> bytes:
        one = self._objects[file]
        end = one.size if end is None else min(end, one.size)
        return self._bucket.read(one, start, end) if start < end else b""

    def stream(self, file: str, start: int) -> Iterator[bytes]:
        return self._bucket.stream(self._objects[file], start)
