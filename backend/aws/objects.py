"""Objects of a bucket that are written once under a key of their own: uploads in parts that go on where they stopped,
removal.

Every part carries its SHA-256, which S3 compares; after the last one the checksum over all parts is compared here. What
is busy, throttled or dropped is tried again by botocore (standard mode). Knows nothing of artifacts.
"""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from backend.aws.s3 import Bucket, ConnectionLost, ObjectChanged, S3Object

PART_BYTES = 16 << 20
MOST_PARTS = 10_000
"""S3's own limits: 5 MiB to 5 GiB a part, 10,000 parts."""
STREAMS = 4
TRIES = 8
"""Tries of a request that is answered with 500, 503, "slow down" or not at all; botocore waits up to 20 s between
two."""
A_CALL = 1000
"""Keys that one request removes."""
PROBE = b"whetstone"


class Objects(Bucket):
    """Raises as a Bucket does."""

    rights = (
        "keep artifacts in {place}: you need s3:ListBucket, s3:ListBucketMultipartUploads, s3:GetObject, s3:PutObject, "
        "s3:DeleteObject, s3:AbortMultipartUpload and s3:ListMultipartUploadParts there"
    )

    def __init__(self, name: str, tries: int | None = None) -> None:
        self.tries = tries or TRIES
        super().__init__(name)

    def put(self, path: Path, key: str, on_sent: Callable[[int], None] = lambda size: None) -> None:
        """Upload the file; `on_sent` is given the bytes that have arrived, also those of an earlier try.

        Raises OSError where the file cannot be read, and ConnectionLost where S3 has other bytes in the end.
        """
        size = path.stat().st_size
        if size <= PART_BYTES:
            self.put_bytes(key, path.read_bytes())
            on_sent(size)
        else:
            with self._explained(key):
                _Upload(self, path, key, max(PART_BYTES, -(-size // MOST_PARTS)), on_sent).run()

    def put_bytes(self, key: str, content: bytes) -> None:
        with self._explained(key):
            self._client.put_object(Bucket=self.name, Key=key, Body=content, ChecksumSHA256=_sha256(content))

    def get_bytes(self, key: str) -> bytes:
        """Read a small object; an answer that breaks off is requested again. Raises ObjectChanged if there is none."""
        for last in (False, False, True):
            try:
                with self._explained(key):
                    content: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
                    return content
            except ConnectionLost:
                if last:
                    raise
        raise AssertionError("unreachable")

    def has(self, key: str, size: int) -> bool:
        """Return whether an object of that size is there."""
        try:
            with self._explained(key):
                return bool(self._client.head_object(Bucket=self.name, Key=key)["ContentLength"] == size)
        except ObjectChanged:
            return False

    def stream_from(self, key: str, start: int, size: int) -> Iterator[bytes]:
        """The bytes from `start` on, of an object of that size. Raises ObjectChanged too."""
        return self.stream(S3Object(key, size, ""), start) if start < size else iter(())

    def remove(self, keys: Iterable[str]) -> None:
        """Erase these keys and uploads begun under them; missing ones are ignored."""
        names = sorted(set(keys))
        with self._explained():
            for key in names:
                for upload in self.begun(key):
                    self._client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload)
            for first in range(0, len(names), A_CALL):
                named = [{"Key": key} for key in names[first : first + A_CALL]]
                answer = self._client.delete_objects(Bucket=self.name, Delete={"Objects": named, "Quiet": True})
                for error in answer.get("Errors", []):
                    raise self._sentence(str(error.get("Code", "")), error.get("Key"))

    def remove_below(self, prefix: str) -> None:
        """Everything under the prefix, also what was begun there."""
        keys = {stored.key for stored in self.objects(prefix, deep=True)}
        with self._explained():
            keys |= {upload["Key"] for upload in self._listed("list_multipart_uploads", "Uploads", Prefix=prefix)}
        self.remove(keys)

    def begun(self, key: str) -> list[str]:
        """The ids of uploads under that key that were not ended, the oldest first."""
        uploads = [
            upload for upload in self._listed("list_multipart_uploads", "Uploads", Prefix=key) if upload["Key"] == key
        ]
        return [
            str(upload["UploadId"])
            for upload in sorted(uploads, key=lambda upload: (upload["Initiated"], upload["UploadId"]))
        ]

    def check_writable(self, key: str) -> None:
        """Write, read and erase a small object. Raises an error that says why that is not possible."""
        self.put_bytes(key, PROBE)
        if self.get_bytes(key) != PROBE:
            raise ConnectionLost(f"s3://{self.name} answers with other bytes than were written: check the address.")
        self.remove([key])


class _Upload:
    """The upload of one file in parts. An upload that was begun before under this key continues: what S3 has of it is
    not sent again."""

    def __init__(self, bucket: Objects, path: Path, key: str, part_bytes: int, on_sent: Callable[[int], None]) -> None:
        self.bucket, self.path, self.part_bytes, self._on_sent = bucket, path, part_bytes, on_sent
        self.where = {"Bucket": bucket.name, "Key": key}
        self.size, self.arrived, self._lock = path.stat().st_size, 0, threading.Lock()

    def run(self) -> None:
        client = self.bucket._client
        # 1. Take up an upload that broke off, if there is one.
        begun = self.bucket.begun(self.where["Key"])
        upload = (
            begun[-1] if begun else client.create_multipart_upload(**self.where, ChecksumAlgorithm="SHA256")["UploadId"]
        )
        self.where["UploadId"] = upload
        listed = self.bucket._listed("list_parts", "Parts", **self.where) if begun else []
        there = {part["PartNumber"]: part for part in listed}
        # 2. Send the parts that are not there.
        pool, numbers = ThreadPoolExecutor(STREAMS), range(1, -(-self.size // self.part_bytes) + 1)
        try:
            parts = list(pool.map(lambda number: self._send(number, there.get(number)), numbers))
        finally:
            pool.shutdown(cancel_futures=True)
        # 3. Complete the upload and check the whole.
        client.complete_multipart_upload(**self.where, MultipartUpload={"Parts": parts})
        self._check(parts)

    def _send(self, number: int, there: dict[str, Any] | None) -> dict[str, Any]:
        with self.path.open("rb") as source:
            source.seek((number - 1) * self.part_bytes)
            content = source.read(self.part_bytes)
        checksum = _sha256(content)
        # Do not send a part again that is there unchanged.
        if there is not None and _is(there, content, checksum):
            tag = there["ETag"]
        else:
            sent = self.bucket._client.upload_part(
                **self.where, PartNumber=number, Body=content, ChecksumSHA256=checksum
            )
            tag = sent["ETag"]
        with self._lock:
            self.arrived += len(content)
            self._on_sent(self.arrived)
        return {"PartNumber": number, "ETag": tag, "ChecksumSHA256": checksum}

    def _check(self, parts: list[dict[str, Any]]) -> None:
        """S3's checksum of an object in parts is that over the parts' checksums, and says how many they were."""
        key = self.where["Key"]
        head = self.bucket._client.head_object(Bucket=self.bucket.name, Key=key, ChecksumMode="ENABLED")
        joined = b"".join(base64.b64decode(part["ChecksumSHA256"]) for part in parts)
        stated = str(head.get("ChecksumSHA256", "")).split("-")[0]
        if head["ContentLength"] != self.size or (stated and stated != _sha256(joined)):
            self.bucket.remove([key])
            raise ConnectionLost(f"{self.path.name} arrived at s3://{self.bucket.name} with other bytes: try again.")


def _is(part: dict[str, Any], content: bytes, checksum: str) -> bool:
    """Return whether S3 has these bytes as that part: by its SHA-256, else by its tag, which is the MD5 unless a key of
    KMS encrypts."""
    if part.get("ChecksumSHA256"):
        return bool(part["ChecksumSHA256"] == checksum)
    tag = str(part["ETag"]).strip('"')
    return part["Size"] == len(content) and tag == hashlib.md5(content, usedforsecurity=False).hexdigest()


def _sha256(content: bytes) -> str:
    return base64.b64encode(hashlib.sha256(content).digest()).decode()
