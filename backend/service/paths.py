"""Paths that a person writes. A path that is too long, has an unknown user or a null byte counts as missing.

In a shared studio people may name only files in the home's folders for uploads (HOME_FOLDERS), in the checkout's assets
and in folders that the owner listed: the home also holds the sign-in secret, the database, logs and settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel

from backend import settings
from backend.domain.errors import RequestError
from backend.domain.evaluation.document import EvaluateOptions, Speculation, Variant
from backend.domain.jobs.kinds import KINDS
from backend.domain.model.facts import ModelCard
from backend.domain.recipe.recipe import Prune, Quantize, Speculate
from backend.settings import Settings

HOME_FOLDERS = ("workloads", "calibration", "texts", "tasks", "models")
"""Folders of the home that hold what people bring. Artifacts have a folder of their own (`Settings.artifacts`)."""
PSEUDO_FILE_SYSTEMS = {
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
}
"""File systems of Linux that hold no data of anybody (proc(5), sysfs(5), filesystems(5))."""
PATH_PREFIXES = (".", "/", "~")
PATH_FIELDS: dict[type[BaseModel], tuple[str, ...]] = {
    EvaluateOptions: ("workload", "quality_text", "tasks"),
    Quantize: ("calibration",),
    Prune: ("calibration",),
    Speculate: ("draft",),
    Speculation: ("draft_path", "draft_gguf"),
    ModelCard: ("path",),
    Variant: ("source", "model_path", "original_path", "gguf"),
    **{row.specification: row.person_paths for row in KINDS.values()},
}
"""Every field of a job's specification that may hold a path which a person named. Their subclasses have them too."""


def resolve(source: str) -> Path | None:
    """Return the absolute path with `~` expanded; None if the text cannot be one. Raises RequestError if it is not
    UTF-8."""
    try:
        path = Path(source).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        return None
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise RequestError(f"The path {ascii(str(path))[:200]} is not UTF-8 text: rename the folder or file.") from None
    return path


def find_file(source: str) -> Path | None:
    """Return the file of that name, or None. Raises RequestError as `find_folder` does."""
    return _find(source, Path.is_file)


def find_folder(source: str) -> Path | None:
    """Return the folder of that name, or None. Raises RequestError if it is not on a disk, or if others reach the
    studio and may not name it."""
    return _find(source, Path.is_dir)


def check_on_disk(path: Path) -> None:
    """Refuse what the kernel makes up, such as /proc/self/mem, which has neither a size nor an end. Raises
    RequestError."""
    mounts = {Path(disk.mountpoint): disk.fstype for disk in psutil.disk_partitions(all=True)}
    kind = next((mounts[place] for place in (path, *path.parents) if place in mounts), "")
    if kind in PSEUDO_FILE_SYSTEMS:
        raise RequestError(
            f"{path} is no file on a disk but made by the kernel ({kind}): copy what you mean into a file."
        )


def may_be_named(path: Path, chosen: Settings) -> bool:
    """Return whether other people may name that resolved path. A listed folder that contains the home opens nothing of
    the home."""
    roots = [chosen.home.joinpath(room).resolve() for room in HOME_FOLDERS] + [
        settings.ASSETS,
        chosen.artifacts,
        *chosen.import_folders,
    ]
    if path.is_relative_to(chosen.home):
        roots = [root for root in roots if not chosen.home.is_relative_to(root)]
    return any(path.is_relative_to(root) for root in roots)


def check_specification(spec: BaseModel, is_remembered: Callable[[Path], bool]) -> None:
    """Check every path of a job's specification, also of one that is repeated and was written before others reached the
    studio.

    `is_remembered`: whether a model was imported from that folder, which may be used wherever it lies. Raises
    RequestError.
    """
    chosen = settings.load()
    for written in _paths_in(spec) if chosen.shared else ():
        path = resolve(written) if written.startswith(PATH_PREFIXES) else None
        if path is None or may_be_named(path, chosen) or path.is_relative_to(chosen.cache) or is_remembered(path):
            continue
        raise _outside_error(path, chosen)


def _paths_in(value: Any) -> Iterator[str]:
    """Yield the texts in PATH_FIELDS of a specification and of all that it holds."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _paths_in(item)
    elif isinstance(value, BaseModel):
        fields = {name for model, names in PATH_FIELDS.items() if isinstance(value, model) for name in names}
        for name, content in value:
            texts = content if isinstance(content, tuple) else (content,)
            yield from (text for text in texts if name in fields and isinstance(text, str))
            yield from _paths_in(content)


def _find(source: str, is_kind: Callable[[Path], bool]) -> Path | None:
    """Return the file or folder if it is there and may be named.

    Returns None for one that may not, if the text need not be meant as a path: a hub id may also be the name of a
    folder here. Raises RequestError as `find_folder` does.
    """
    # Look on the disk.
    path = resolve(source)
    try:
        if path is None or not is_kind(path):
            return None
    except OSError:
        return None
    check_on_disk(path)
    # Refuse what others may not name.
    chosen = settings.load()
    if not chosen.shared or may_be_named(path, chosen):
        return path
    if not source.startswith(PATH_PREFIXES):
        return None
    raise _outside_error(path, chosen)


def _outside_error(path: Path, chosen: Settings) -> RequestError:
    listed = ", ".join(map(str, chosen.import_folders)) or "none is listed"
    return RequestError(
        f"{path} is outside the folders that this studio reads for others ({listed}): move it there, or ask its "
        "owner to list the folder in WHETSTONE_IMPORT_FOLDERS."
    )
