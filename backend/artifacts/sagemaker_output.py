"""Makes an artifact's folder from the output of a SageMaker optimization job in S3: fetched, hashed, with a manifest.

From then on it is an artifact like any other: published once, verified whenever it is read.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from backend import files, transfer
from backend.artifacts import artifact_folder
from backend.artifacts.base import Tell
from backend.aws.objects import Objects
from backend.aws.s3 import S3Object
from backend.domain.errors import WhetstoneError
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.jobs import ManagedSpec
from backend.transfer import Digest

CONFIG = "config.json"
SERVED_SUFFIXES = {".safetensors", ".json", ".model", ".txt", ".jinja"}
"""Suffixes of the files a server needs; none can run code."""


class Unusable(WhetstoneError):
    """The result is not weights that a server reads as they are: it stays in S3."""


def stage(spec: ManagedSpec, job: str, document: dict[str, Any], folder: Path, tell: Tell) -> Manifest:
    """Fill the folder, going on where an earlier try stopped. `document`: the job's result.

    Raises Unusable, and what S3 and the disk raise.
    """
    # 1. Choose the model's files in the job's output.
    assert spec.parent is not None
    bucket, _, prefix = str(document["output"]).removeprefix("s3://").partition("/")
    objects = Objects(bucket)
    selected = _chosen(objects.objects(prefix, deep=True), str(document["output"]))
    sizes = {path: each.size for path, each in selected.items()}
    # 2. Download them, and copy the draft, which did not go to SageMaker.
    with files.disk_errors(folder):
        left = sum(sizes.values()) - transfer.present(folder / "model", sizes)
        transfer.download(_Output(objects, selected), sizes, folder / "model", lambda fetched: tell(fetched, left))
        if spec.draft is not None:
            (folder / "draft").mkdir(parents=True, exist_ok=True)
            for path in Path(spec.draft.path).iterdir():
                if path.suffix in SERVED_SUFFIXES and path.is_file():
                    shutil.copyfile(path, folder / "draft" / path.name)
        # 3. Hash everything and write the manifest.
        manifest = Manifest(
            job=job,
            parent=spec.parent,
            draft=spec.draft,
            recipe=spec.recipe,
            recipe_hash=spec.recipe.hash,
            files=artifact_folder.describe(folder),
            bytes_before=spec.parent.weights_bytes,
            bytes_after=sum(size for name, size in sizes.items() if name.endswith(".safetensors")),
            hardware={"place": spec.target},
            seconds=document["seconds"],
        )
        artifact_folder.write_manifest(folder, manifest)
    return manifest


def _chosen(objects: list[S3Object], place: str) -> dict[str, S3Object]:
    """Choose the model's own files, by name: those beside the config.json nearest to the top. Raises Unusable."""
    configs = [stored.key for stored in objects if PurePosixPath(stored.key).name == CONFIG]
    if not configs:
        raise Unusable(
            f"There is no {CONFIG} in {place}, so it is not weights that a server here reads: it stays in S3."
        )
    # The outermost config.json is the model's.
    home = min(configs, key=lambda key: (key.count("/"), key)).removesuffix(CONFIG)
    relative = {stored.key.removeprefix(home): stored for stored in objects if stored.key.startswith(home)}
    selected = {
        name: stored
        for name, stored in relative.items()
        if "/" not in name and PurePosixPath(name).suffix in SERVED_SUFFIXES
    }
    if not any(name.endswith(".safetensors") for name in selected):
        raise Unusable(
            f"There are no safetensors in {place}, so it is not weights that a server here reads: it stays in S3."
        )
    return selected


class _Output:
    """For a download."""

    name = "the result of SageMaker"

    def __init__(self, objects: Objects, selected: dict[str, S3Object]) -> None:
        self._objects, self._selected = objects, selected

    def digest(self, file: str) -> Digest | None:
        checksum = self._objects.checksum(self._selected[file])
        return Digest(*checksum) if checksum else None

    def stream(self, file: str, start: int) -> Iterator[bytes]:
        return self._objects.stream(self._selected[file], start)
