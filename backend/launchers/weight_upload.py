"""Uploads weights that lie here to S3, for a job of AWS's.

They go into a folder named by their content, so that nobody's are ever taken for others', and what arrived there once
is not sent again. A file in parts that was begun before a kill goes on (`aws.objects`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from backend.aws.objects import Objects
from backend.domain.errors import WorkError

FILES = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")
"""What a server needs, and nothing that could run code."""
Tell = Callable[[int, int], None]
"""Is told bytes done and bytes in all; what it raises ends the upload."""


class WeightsMissing(WorkError):
    """The weights are not on this machine any more: import the model again."""


def upload(folder: Path, place: str, tell: Tell) -> str:
    """The name of their folder below `place`, s3://BUCKET/PREFIX, once all are there.

    Raises WeightsGone, and what `Objects` does.
    """
    try:
        found = _hash_files(folder, tell)
    except OSError as error:
        raise WeightsMissing(f"The weights in {folder} cannot be read ({error}): import the model again.") from None
    content = hashlib.sha256("".join(f"{path.name} {digest}\n" for path, digest in found.items()).encode()).hexdigest()
    bucket, _, prefix = place.removeprefix("s3://").partition("/")
    objects, below = Objects(bucket), "/".join(filter(None, (prefix.strip("/"), content))) + "/"
    there = {each.key: each.size for each in objects.objects(below, deep=True)}
    sizes = {path: path.stat().st_size for path in found}
    done, total = 0, sum(sizes.values())
    for path, size in sizes.items():
        if there.get(below + path.name) != size:
            before = done
            objects.put(path, below + path.name, lambda sent, before=before: tell(before + sent, total))  # type: ignore[misc]
        done += size
        tell(done, total)
    return content


def _hash_files(folder: Path, tell: Tell) -> dict[Path, str]:
    """SHA-256 by file, sorted by name. Raises OSError, WeightsGone."""
    found = {}
    for path in sorted({path for pattern in FILES for path in folder.glob(pattern)}):
        tell(0, 0)
        with path.open("rb") as source:
            found[path] = hashlib.file_digest(source, "sha256").hexdigest()
    if not any(path.suffix == ".safetensors" for path in found):
        raise WeightsMissing(f"There are no safetensors in {folder}: import the model again.")
    return found
