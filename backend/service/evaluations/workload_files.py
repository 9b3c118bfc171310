"""Workload files of any known format -> our own lines, kept in the home by the hash of their content.

Knows nothing of variants; `workloads` says which file is meant.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from backend import files, foreign
from backend.catalog.text import workload_text
from backend.domain.errors import InvalidWorkload
from backend.domain.roles import Action
from backend.service.jobs import quotas
from backend.service.workspace import Workspace

MAX_BYTES, BYTES_A_SECOND = 200_000_000, 10_000_000
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
BY_HASH = "by-hash"


def read(file: Path) -> bytes:
    """Raises InvalidWorkload where it is too large or cannot be read."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise too_large(file.name)
        return file.read_bytes()
    except OSError as error:
        raise InvalidWorkload(f"{file.name} cannot be read ({error.strerror}): check its permissions.") from None


def too_large(name: str) -> InvalidWorkload:
    return InvalidWorkload(f"{name} has more than {MAX_BYTES // 1_000_000} MB: take a sample of it.")


def own_lines(name: str, content: bytes, columns: Mapping[str, str]) -> bytes:
    """The content of the file `name` as our own JSONL. Raises InvalidWorkload with what is wrong first, TooDemanding."""
    if len(content) > MAX_BYTES:
        raise too_large(name)
    return foreign.call(workload_text.convert, name, content, dict(columns), about=name, cpu_s=_seconds(content))


def _seconds(content: bytes) -> float:
    return foreign.CPU_S + len(content) / BYTES_A_SECOND


class Preview(NamedTuple):
    """`columns` of a table, in order, or the fields of JSON in no known format; `rows` the first of them. Both empty others."""

    columns: list[str]
    rows: list[dict[str, Any]]


def preview(name: str, content: bytes) -> Preview:
    """To be shown. Raises InvalidWorkload where it cannot be read, TooDemanding."""
    return Preview(*foreign.call(workload_text.preview, name, content, about=name, cpu_s=_seconds(content)))


def keep(workspace: Workspace, name: str, content: bytes) -> Path:
    """The file of this content in the home, written once: what a job was asked stays as it was. Raises ReadOnly."""
    workspace.check(Action.SUBMIT)
    folder = workspace.settings.home / "workloads" / BY_HASH / hashlib.sha256(content).hexdigest()[:32]
    file = folder / f"{plain(name)}.jsonl"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        files.write(file, content)
    return file


def store(workspace: Workspace, name: str, content: bytes) -> str:
    """Put an upload beside the others under its name and the start of its hash; that is what it can be asked for by."""
    stored = f"{plain(name)}-{hashlib.sha256(content).hexdigest()[:8]}"
    folder = workspace.settings.home / "workloads"
    quotas.check_upload(workspace, len(content))
    with workspace.changing(Action.UPLOAD, stored, detail="workload"):
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / f"{stored}.jsonl", content)
    return stored


def plain(name: str) -> str:
    """A name that can be that of a file everywhere."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "workload"
