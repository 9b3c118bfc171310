"""Workload files of any known format -> our own lines, kept in the home by the hash of their content.

Knows nothing of variants; `workloads` says which file is meant.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.errors import InvalidWorkload
from backend.domain.workload import formats
from backend.domain.workload.workload import parse
from backend.service.workspace import Workspace

MAX_BYTES = 200_000_000
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
BY_HASH = "by-hash"
SHOWN_ROWS = 5


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
    """The content of the file `name` as our own JSONL. Raises InvalidWorkload with the first thing that is wrong."""
    if len(content) > MAX_BYTES:
        raise too_large(name)
    suffix = Path(name).suffix.lower()
    if suffix == ".csv":
        made = formats.from_csv(content, columns)
    elif suffix == ".parquet":
        made = formats.from_table(_parquet(name, content), columns)
    else:
        made = formats.from_json(Path(name).stem, content, columns)
    parse(Path(name).stem, made)
    return made


def columns_of(name: str, content: bytes) -> list[str]:
    """The columns of a table, in order, or the fields of JSON in no known format; none of other files.

    Raises InvalidWorkload where it cannot be read.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        return list(_table(name, content).column_names)
    if suffix != ".csv":
        return formats.unknown_fields(content)
    first = content.decode("utf-8-sig", "replace").partition("\n")[0].strip("\r")
    return [column for column in formats.names(first) if column]


def first_rows(name: str, content: bytes) -> list[dict[str, Any]]:
    """The first rows of a file that has columns, to be shown. Raises InvalidWorkload where it cannot be read."""
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        rows: list[dict[str, Any]] = _table(name, content).slice(0, SHOWN_ROWS).to_pylist()
        return rows
    if suffix == ".csv":
        return list(islice(formats.csv_rows(content), SHOWN_ROWS))
    return list(islice(formats.objects(content), SHOWN_ROWS))


def keep(workspace: Workspace, name: str, content: bytes) -> Path:
    """The file of this content in the home, written once: what a job was asked stays as it was. Raises ReadOnly."""
    workspace.check_writable()
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
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / f"{stored}.jsonl", content)
    return stored


def plain(name: str) -> str:
    """A name that can be that of a file everywhere."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:60] or "workload"


def _parquet(name: str, content: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = _table(name, content).to_pylist()
    return rows


def _table(name: str, content: bytes) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    except (pyarrow.ArrowException, OSError, ValueError):
        raise InvalidWorkload(f"{name} is not a Parquet file that can be read: write it anew.") from None
