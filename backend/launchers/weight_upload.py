"""Uploads weights from this machine to S3, for a job of AWS's.

They go into a folder named by their content, so that one model's weights are never taken for another's, and what
arrived once is not sent again. A file in parts that was begun before a kill is continued (`aws.objects`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from backend.aws.objects import Objects
from backend.domain.errors import WorkError

FILES = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")
"""Files that a server needs; none could run code."""
ReportProgress = Callable[[int, int], None]
"""Called with bytes done and bytes in all; an exception ends the upload."""


class WeightsMissing(WorkError):
    """The weights are not on this machine any more: import the model again."""


def upload(folder: Path, place: str, report: ReportProgress) -> str:
    """Upload the weights and return the name of their folder below `place` (s3://BUCKET/PREFIX), once all are there.

    Raises WeightsMissing, and what `Objects` does.
    """
    # 1. Name the folder by the content.
    try:
        digests = _hash_files(folder, report)
    except OSError as error:
        raise WeightsMissing(f"The weights in {folder} cannot be read ({error}): import the model again.") from None
    content = hashlib.sha256(
        "".join(f"{path.name} {digest}\n" for path, digest in digests.items()).encode()
    ).hexdigest()
    bucket, _, prefix = place.removeprefix("s3://").partition("/")

    # 2. Upload the files that are missing or have another size.
    objects, below = Objects(bucket), "/".join(filter(None, (prefix.strip("/"), content))) + "/"
    uploaded = {object_.key: object_.size for object_ in objects.objects(below, deep=True)}
    sizes = {path: path.stat().st_size for path in digests}
    done, total = 0, sum(sizes.values())
    for path, size in sizes.items():
        if uploaded.get(below + path.name) != size:
            before = done
            objects.put(path, below + path.name, partial(_report_part, report, before, total))
        done += size
        report(done, total)
    return content


def _report_part(report: ReportProgress, before: int, total: int, sent: int) -> None:
    report(before + sent, total)


def _hash_files(folder: Path, report: ReportProgress) -> dict[Path, str]:
    """Return the SHA-256 of each file, sorted by name. Raises OSError, WeightsMissing."""
    digests = {}
    for path in sorted({path for pattern in FILES for path in folder.glob(pattern)}):
        report(0, 0)
        with path.open("rb") as source:
            digests[path] = hashlib.file_digest(source, "sha256").hexdigest()
    if not any(path.suffix == ".safetensors" for path in digests):
        raise WeightsMissing(f"There are no safetensors in {folder}: import the model again.")
    return digests
